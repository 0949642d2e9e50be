"""Models of published widths without weights: the peak of tensors while they decode, beside the budget of memory.

There are three layers, which are enough for keys and values to add up.
"""

import contextlib
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu import MASK, PAD, SHAPES, random_model
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.jobs.memory import RowSize
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.pretended_gpu.device import PretendedGpu

ROWS, PROMPT, MASKS = 32, 511, 256
WINO = {"sampler": "wino", "confidence_threshold": 0.9, "block_length": 32}
KLASS = {"kl_threshold": 0.01, "confidence_threshold": 0.9, "block_length": 32}
COLUMNS = 769  # 511 and 256 in whole steps of 256, and one that no row owns

# Shape, options, and the sizes of a row.
PEAKS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llada-8b", {}, {"length": 768, "n_logits": MASKS}),
    ("llada-8b", {"confidence_threshold": 0.9, "block_length": 32}, {"length": 768, "n_logits": 32}),
    ("dream-7b", {"cfg_scale": 1.0}, {"length": 768, "n_logits": MASKS, "is_guided": True}),
    ("llada-8b", {"cache": "dual", "block_length": 32}, {"length": COLUMNS, "n_logits": 32, "is_cached": True}),
    ("sdar-8b", {}, {"length": COLUMNS, "n_run": 512, "n_logits": 4, "is_cached": True}),
    ("llada-8b", {"sampler": "rcr", "steps": 8, "block_length": 32}, {"length": 768, "n_logits": MASKS}),
    ("llada-8b", WINO, {"length": 768, "n_run": 800, "n_logits": 32}),
    ("llada-8b", KLASS, {"length": 768, "n_logits": 32, "n_kept": MASKS + 1}),
    ("llada2-mini", {}, {"length": COLUMNS, "n_run": 512, "n_logits": 32, "is_cached": True}),
]


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


def peak_of(name: str, options: dict[str, Any], sizes: dict[str, Any]) -> tuple[int, int]:
    """The most bytes beside the weights in the first passes over ROWS canvases, and those of the budget."""
    with PretendedGpu() as gpu:
        denoiser = denoiser_of(gpu, name, 2)
        weights = gpu.report.live
        settings = DecodingOptions(**{"n_masks": MASKS, **options})
        canvases = [
            build_canvas(
                [7] * (PROMPT - n % 8), way_of(settings, denoiser.attention), mask_token_id=MASK, max_length=8192
            )[0]
            for n in range(ROWS)
        ]
        with contextlib.suppress(EnoughError):
            decode_canvases(denoiser, canvases, settings, batch_size=ROWS)
        budget = ROWS * RowSize(**sizes).total(denoiser.model.config, 2)
        return gpu.report.peak - weights, budget
