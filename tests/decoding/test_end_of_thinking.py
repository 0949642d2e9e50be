"""A budget for thinking: where its end is written, in every way of decoding, and what leaves it standing."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding.canvas import Canvas, Completion
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.support.canvases import APPROXIMATE, FROM_START, IN_BLOCKS, WAYS, Way, canvas, model

END = 45
LIKE_NEMOTRON = AttentionPattern(4, "prompt_end", whole_prompt=True, causal_context=True)
CHANGES_TOKENS: list[Way] = [
    (FULL_ATTENTION, {}, {"sampler": "wino", "confidence_threshold": 0.2, "remask_threshold": 0.9}),
    (FULL_ATTENTION, {}, {"sampler": "remdm", "block_length": 8}),
    (FULL_ATTENTION, {}, {"sampler": "rcr", "steps": 6}),
    (FROM_START, {"edits": True}, {"editing_threshold": 0.0, "block_length": 8}),
]


def model_without_end(attention: AttentionPattern, **facts: Any) -> Denoiser:
    """It never writes the end by itself."""
    denoiser = model(attention, **facts)
    with torch.no_grad():
        denoiser.model.lm_head.weight[END] = 0.0
    return denoiser


def decoded(
    denoiser: Denoiser, rows: list[Canvas], options: DecodingOptions, end: int = END, **more: Any
) -> list[Completion]:
    return decode_canvases(denoiser, rows, options, end_think_ids=[end], **more)


@pytest.mark.parametrize(
    ("attention", "facts", "changes"),
    [*WAYS[::3], *IN_BLOCKS[::3], *APPROXIMATE[::3], (LIKE_NEMOTRON, {}, {}), *CHANGES_TOKENS],
)
def test_the_end_is_written_when_its_block_is_decoded(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Earlier blocks do not see it; batches, early exit and what is remembered change nothing."""
    denoiser, without = model_without_end(attention, **facts), DecodingOptions(**changes)
    rows = [canvas(denoiser, without, 1 + 3 * k, 7 + k, k) for k in range(3)]
    plainly = decoded(denoiser, rows, without)
    nothing_remembered = {"cache": "none"} if attention.is_block_causal else {}
    for budget, way in ((0, {}), (6, nothing_remembered)):
        options = replace(without, max_thinking_tokens=budget)
        answers = decoded(denoiser, rows, options)
        for row, answer, plain in zip(rows, answers, plainly, strict=True):
            assert answer.token_ids.index(END) == budget
            assert len(answer.token_ids) == len(plain.token_ids) == row.n_returned
            if options.sampler != "rcr":  # which takes tokens of earlier blocks back
                before = max(start for start in (0, *accumulate(row.block_lengths)) if start <= budget)
                assert answer.token_ids[:before] == plain.token_ids[:before]
        assert decoded(denoiser, rows, options, batch_size=2) == answers
        found = decoded(denoiser, rows, replace(options, **{"early_exit": False, **way}))
        assert [answer.token_ids for answer in found] == [answer.token_ids for answer in answers]
