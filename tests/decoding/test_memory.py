"""The budget of `batch_size=auto` beside the peak of tensors, of models of 7 to 16 billion parameters without weights.

The width of every layer is the published one; there are three layers, which are enough for keys and values to add up.
"""

from typing import Any

import pytest
import torch

from mdlm_lm_eval.jobs.memory import RowSize, rows_that_fit
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.options import LikelihoodOptions
from tests.pretended_gpu import GPU, PretendedGpu
from tests.pretended_gpu.peaks import PEAKS, ROWS, EnoughError, denoiser_of, peak_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["llada-8b", "dream-7b", "sdar-8b", "llada2-mini"])
@pytest.mark.parametrize("guided", [False, True])
def test_a_pass_over_whole_canvases(name: str, guided: bool) -> None:
    with PretendedGpu() as gpu:
        denoiser = denoiser_of(gpu, name, 1)
        weights = gpu.report.live
        ids = torch.zeros(ROWS, 768, dtype=torch.long, device=GPU)
        denoiser.logits(
            ids,
            torch.ones_like(ids),
            torch.arange(ROWS * 64, device=GPU),
            cfg_scale=float(guided),
            prompt_mask=ids == 0,
            is_aligned=True,
        )
        row = RowSize(length=768, n_logits=64, is_guided=guided).total(denoiser.model.config, 2)
        assert gpu.report.peak - weights == pytest.approx(ROWS * row, rel=0.05)


@pytest.mark.parametrize(("name", "options", "sizes"), PEAKS)
def test_decoding(name: str, options: dict[str, Any], sizes: dict[str, Any]) -> None:
    peak, budget = peak_of(name, options, sizes)
    beside = peak - budget  # slices of logits, states of rows
    assert -0.05 * budget <= beside <= 0.05 * budget + 1.2e9


@pytest.mark.parametrize("likelihood", ["mc", "duel"])
def test_likelihoods(likelihood: str) -> None:
    options = LikelihoodOptions(likelihood=likelihood)
    with PretendedGpu() as gpu:
        denoiser = denoiser_of(gpu, "llada-8b", 2)
        weights = gpu.report.live
        requests = [LikelihoodRequest([5 + n] * 501, list(range(3, 67)), n) for n in range(ROWS)]
        with pytest.raises(EnoughError):
            score(denoiser, requests, options, batch_size=ROWS, max_length=8192)
        length = devices.positions_of(565, GPU)
        row = RowSize(length=length, n_logits=64).total(denoiser.model.config, 2)
        assert gpu.report.peak - weights == pytest.approx(ROWS * row, rel=0.1)


def test_rows_fit_into_what_is_free() -> None:
    with PretendedGpu() as gpu:
        config = denoiser_of(gpu, "llada-8b", 1).model.config
    row = RowSize(length=1024, n_logits=32, is_cached=True).total(config, 2)
    for free in (1e9, 20e9, 80e9, 140e9):
        n_rows = rows_that_fit(row, int(free), most=1024)
        assert n_rows == 1 or n_rows * row < 0.9 * free
        assert 2 * n_rows * row > 0.9 * free - 5e9
