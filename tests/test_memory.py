"""The budget of `batch_size=auto` beside the peak of tensors, of models of 7 to 16 billion parameters without weights.

The width of every layer is the published one; there are three layers, which are enough for keys and values to add up.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.gpu import MASK, PAD, SHAPES, random_model
from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.memory import row_memory, rows_that_fit
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from tests.pretended_gpu import GPU, PretendedGpu

ROWS, PROMPT, MASKS = 32, 511, 256
COLUMNS = 769  # 511 and 256 in whole steps of 256, and one that no row owns


class EnoughError(Exception):
    """The passes of interest have run."""


def denoiser_of(gpu: PretendedGpu, name: str, n_passes: int) -> Denoiser:
    """A denoiser of this shape, which stops after so many passes; the peak is counted from its weights on."""
    shape = replace(SHAPES[name], layers=3)
    with torch.device("meta"):
        model = random_model(shape, "meta", torch.bfloat16)
    attention = FULL_ATTENTION if shape.block is None else AttentionPattern(shape.block)
    denoiser = Denoiser(
        gpu.move(model),
        mask_token_id=MASK,
        pad_token_id=PAD,
        shift=shape.shift,
        attention=attention,
        cuda_graphs=False,
    )

    def stop(*_: Any) -> None:
        if denoiser.forward_passes > n_passes:
            raise EnoughError

    model.register_forward_pre_hook(stop)
    return denoiser


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
        row = row_memory(denoiser.model.config, length=768, n_logits=64, itemsize=2, guided=guided)
        assert gpu.report.peak - weights == pytest.approx(ROWS * row.total, rel=0.05)


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        ("llada-8b", {}, {"length": 768, "n_logits": MASKS}),
        ("llada-8b", {"confidence_threshold": 0.9, "block_length": 32}, {"length": 768, "n_logits": 32}),
        ("dream-7b", {"cfg_scale": 1.0}, {"length": 768, "n_logits": MASKS, "guided": True}),
        ("llada-8b", {"cache": "dual", "block_length": 32}, {"length": COLUMNS, "n_logits": 32, "is_cached": True}),
        ("sdar-8b", {}, {"length": COLUMNS, "n_run": 512, "n_logits": 4, "is_cached": True}),
        ("llada2-mini", {}, {"length": COLUMNS, "n_run": 512, "n_logits": 32, "is_cached": True}),
    ],
)
def test_decoding(name: str, options: dict[str, Any], sizes: dict[str, Any]) -> None:
    with PretendedGpu() as gpu:
        denoiser = denoiser_of(gpu, name, 2)
        weights = gpu.report.live
        settings = DecodingOptions().override({"n_masks": MASKS, **options})
        where: dict[str, Any] = {"mask_token_id": MASK, "max_length": 8192, "attention": denoiser.attention}
        canvases = [build_canvas([7] * (PROMPT - n % 8), settings, **where)[0] for n in range(ROWS)]
        with pytest.raises(EnoughError):
            decode_canvases(denoiser, canvases, settings, batch_size=ROWS)
        row = row_memory(denoiser.model.config, itemsize=2, **sizes)
        beside = gpu.report.peak - weights - ROWS * row.total  # slices of logits, states of rows
        assert -0.05 * ROWS * row.total <= beside <= 0.05 * ROWS * row.total + 1.2e9


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
        row = row_memory(denoiser.model.config, length=length, n_logits=64, itemsize=2)
        assert gpu.report.peak - weights == pytest.approx(ROWS * row.total, rel=0.1)


def test_rows_fit_into_what_is_free() -> None:
    with PretendedGpu() as gpu:
        config = denoiser_of(gpu, "llada-8b", 1).model.config
    row = row_memory(config, length=1024, n_logits=32, itemsize=2, is_cached=True)
    for free in (1e9, 20e9, 80e9, 140e9):
        n_rows = rows_that_fit(row, int(free), most=1024)
        assert n_rows == 1 or n_rows * row.total < 0.9 * free
        assert 2 * n_rows * row.total > 0.9 * free - 5e9
