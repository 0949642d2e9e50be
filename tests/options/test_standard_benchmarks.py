"""lm-eval's own task YAMLs, as they are, on small local data of the same schema and a tiny random model."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
import pytest
import torch

from mdlm_lm_eval.lm import MDLM
from tests.conftest import data, evaluate
from tests.support.local_tasks import local_task

FOLDER = Path(lm_eval.tasks.__file__).parent
Evaluate = Callable[..., dict[str, Any]]
TASKS = data("benchmarks.json")  # task -> where lm-eval has its YAML, and a few documents of its schema


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """`run(lm, task, **arguments)`: lm-eval's result for its YAML, included whole, with other data."""

    def evaluate_task(lm: MDLM, name: str, **arguments: Any) -> dict[str, Any]:
        splits = dict.fromkeys(("train", "validation", "test", "dev"), TASKS[name]["docs"])
        config = local_task(tmp_path, FOLDER / TASKS[name]["yaml"], splits, name=name)
        return evaluate(lm, [config], tmp_path / "none", **arguments)

    return evaluate_task


def test_mmlu_log_likelihoods_are_the_bound_computed_by_hand(long_checkpoint: Path, run: Evaluate) -> None:
    """Two tokens, a space and a letter: half of each token's share with one mask, half of it with both."""
    lm = MDLM(str(long_checkpoint), device="cpu", batch_size=5, mc_num=8)
    sample = run(lm, "mmlu_anatomy", num_fewshot=1)["samples"]["mmlu_anatomy"][0]
    context, continuation = sample["arguments"][2]
    assert continuation == " C"
    ids = lm.tokenizer.encode(context + continuation, add_special_tokens=False)

    def log_probs(*masked: int) -> list[float]:
        canvas = torch.tensor([ids])
        canvas[0, list(masked)] = lm.mask_token_id
        with torch.no_grad():
            logits = lm.model(input_ids=canvas, attention_mask=torch.ones_like(canvas)).logits[0]
        return [float(logits[at].log_softmax(-1)[ids[at]]) for at in masked]

    by_hand = (sum(log_probs(-2)) + sum(log_probs(-1)) + sum(log_probs(-2, -1))) / 2
    [(log_likelihood, _)] = sample["resps"][2]
    assert float(log_likelihood) == pytest.approx(by_hand, abs=1e-4)


def test_wikitext_perplexity_sums_windows_of_a_page_longer_than_the_context(checkpoint: Path, run: Evaluate) -> None:
    windowed = {size: MDLM(str(checkpoint), device="cpu", batch_size=size, max_length=128, mc_num=8) for size in (1, 5)}
    alone, packed = (run(windowed[size], "wikitext") for size in (1, 5))
    totals, others = (
        [float(np.ravel(sample["resps"][0][0])[0]) for sample in results["samples"]["wikitext"]]  # pairs in lm-eval 0.5
        for results in (alone, packed)
    )
    assert others == pytest.approx(totals, abs=1e-3)
    n_bytes = sum(len(doc["page"].encode()) for doc in TASKS["wikitext"]["docs"])
    scores = alone["results"]["wikitext"]
    assert scores["bits_per_byte,none"] == pytest.approx(-sum(totals) / n_bytes / math.log(2))
    assert scores["byte_perplexity,none"] == pytest.approx(2 ** scores["bits_per_byte,none"])
    assert scores["word_perplexity,none"] > scores["byte_perplexity,none"] > 1
    record = windowed[1].get_model_info()["mdlm"]["tasks"]["wikitext"]
    assert record["truncated_prompts"] == 0
