"""Likelihoods that can be looked at: standard errors in results, and every draw in a file."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mdlm_lm_eval.likelihood.corruptions import standard_error
from mdlm_lm_eval.lm import MDLM
from tests.conftest import evaluate
from tests.support.canvases import FROM_START


@pytest.mark.parametrize("is_in_blocks", [False, True])
def test_draws_have_the_sums_and_standard_errors_of_the_result(
    is_in_blocks: bool, checkpoint: Path, task_folder: Path, tmp_path: Path
) -> None:
    lm = MDLM(
        str(checkpoint), device="cpu", batch_size=4, mc_num=6, check_greedy=False, log_likelihood_draws=str(tmp_path)
    )
    if is_in_blocks:
        lm.denoiser.attention = FROM_START
    found = evaluate(lm, ["tiny_choice"], task_folder)
    draws = pd.read_parquet(tmp_path / "loglikelihood_tiny_choice.parquet")
    added = (draws["weight"] * draws["log_prob"]).groupby([draws["doc_id"], draws["choice"]]).sum()
    scores = {
        (sample["doc_id"], choice): float(log_likelihood)
        for sample in found["samples"]["tiny_choice"]
        for choice, [(log_likelihood, _)] in enumerate(sample["resps"])
    }
    assert added.to_dict() == pytest.approx(scores, abs=1e-5)
    facts: dict[str, Any] = lm.get_model_info()["mdlm"]["tasks"]["tiny_choice"]
    errors = []
    for _, request in draws.groupby(["doc_id", "choice"]):
        of_blocks = []
        ends = [*sorted(request["block"].unique()), request["position"].max() + 1]
        for begin, end in itertools.pairwise(ends):
            own = request[request["block"] == begin].groupby("draw")
            samples = [
                (one["weight"].iloc[0], dict(zip(one["position"], one["log_prob"], strict=True))) for _, one in own
            ]
            if 2 ** (end - begin) - 1 > 6:
                of_blocks.append(standard_error(samples) or 0.0)
        errors += [np.hypot.reduce(of_blocks)] if of_blocks else []
    assert [float(error) for error in facts["standard_errors"].split()] == pytest.approx(errors, rel=1e-3)
    assert facts["standard_error"] == pytest.approx([min(errors), max(errors)])
    assert facts["standard_error_of_mean"] == pytest.approx(np.sqrt(np.sum(np.square(errors))) / len(errors))
    assert len(errors) > 4
    assert draws["masks"].min() > 0
