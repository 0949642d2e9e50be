"""Tiny models, canvases for them, and ways of decoding, of which tests ask the same questions."""

import random
from typing import Any

import torch

from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas, build_infill_canvas
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import data, random_llama

MASK, PAD, EOS, VOCABULARY = 49, 48, 47, 50
FROM_START, FROM_PROMPT = AttentionPattern(4), AttentionPattern(4, "prompt_end")
Way = tuple[AttentionPattern, dict[str, Any], dict[str, Any]]  # attention and other facts of a model, and options
WAYS: list[Way] = [(FULL_ATTENTION, {}, options) for options in data("ways.json")["full"]]
IN_BLOCKS: list[Way] = [
    (AttentionPattern(4, blocks_from), facts, options) for blocks_from, facts, options in data("ways.json")["blocks"]
]
APPROXIMATE: list[Way] = [
    (FULL_ATTENTION, {"shift": shift}, {"cache": cache, "block_length": 4, **changes})
    for cache in ("prefix", "dual")
    for shift, changes in data("ways.json")["approximate"]
]


class RecordingDenoiser(Denoiser):
    """Also keeps the canvases of every forward pass."""

    def __init__(self, *arguments: Any, **facts: Any) -> None:
        super().__init__(*arguments, **facts)
        self.inputs: list[torch.Tensor] = []

    def logits(self, input_ids: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        self.inputs.append(input_ids.clone())
        return super().logits(input_ids, *arguments, **named)


def model(attention: AttentionPattern = FULL_ATTENTION, **facts: Any) -> RecordingDenoiser:
    """Two layers with peaked logits, so that thresholds bite and answers depend on what was filled in before.

    The mask token would be the likeliest everywhere.
    """
    llama = random_llama(VOCABULARY, num_key_value_heads=2)
    with torch.no_grad():
        llama.lm_head.weight[MASK] *= 50
    return RecordingDenoiser(llama, mask_token_id=MASK, pad_token_id=PAD, attention=attention, **facts)


def canvas(
    denoiser: Denoiser, options: DecodingOptions, prompt_length: int = 7, gen_toks: int = 12, seed: int = 0
) -> Canvas:
    draw = random.Random(f"{prompt_length} {seed}")
    prompt = [draw.randrange(40) for _ in range(prompt_length)]
    where: dict[str, Any] = {"mask_token_id": MASK, "max_length": 128, "request_gen_toks": gen_toks, "seed": seed}
    return build_canvas(prompt, way_of(options, denoiser.attention), **where)[0]


def neighbours(denoiser: Denoiser, options: DecodingOptions, n: int = 6, *, most: int = 17) -> list[Canvas]:
    """Canvases, longer and shorter, with up to `most` masks, one more of them with slots among its text."""
    rows = [canvas(denoiser, options, 1 + 3 * k, 1 + (5 * k) % most, k) for k in range(n)]
    if options.cfg_scale == 0.0 and not denoiser.shift:
        way = way_of(options, denoiser.attention)
        text = [[1, 2, 3, 4, 5], [6, 7], [*range(8, 18)], [1]]
        infill, _ = build_infill_canvas(text, way, mask_token_id=MASK, max_length=128, seed=5)
        rows.append(infill)
    return rows
