"""The engine beside the reference loop, pass by pass, in float64; and text between slots, which costs no pass."""

import ast
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.decoding import reference
from mdlm_lm_eval.decoding.canvas import build_infill_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.reference import decode_one
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.decoding.way import check_decoding, way_of
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.support.canvases import EOS, FROM_PROMPT, FROM_START, IN_BLOCKS, MASK, WAYS, neighbours
from tests.support.frozen_runs import denoiser_of, in_float64

WHOLE_PROMPT = AttentionPattern(4, "prompt_end", whole_prompt=True)
PATTERNS: list[tuple[AttentionPattern, dict[str, Any]]] = [
    (FULL_ATTENTION, {}),
    (FULL_ATTENTION, {"shift": True}),
    (FULL_ATTENTION, {"edits": True}),
    *[(attention, facts) for attention in (FROM_START, FROM_PROMPT, WHOLE_PROMPT) for facts in ({}, {"edits": True})],
]
EDITING = {"confidence_threshold": 0.3, "editing_threshold": 0.3}
MULTI_BLOCK = {"sampler": "multi_block", "block_causal": True, "block_length": 4, "confidence_threshold": 0.3}


def n_compared(attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]) -> int:
    """Compares rows in three lanes with the reference loop; returns the number of their passes."""
    options = DecodingOptions(**{**changes, "early_exit": False, "trace": True})
    n_passes = 0
    with in_float64():
        denoiser = denoiser_of(attention, **facts)
        rows = neighbours(denoiser, options, 4, most=9)
        for cache in ("auto", "none"):
            found = decode_canvases(denoiser, rows, replace(options, cache=cache), eos_ids=[EOS], batch_size=3)
            for row, one in zip(rows, found, strict=True):
                passes = decode_one(denoiser, row, options, end_ids={EOS})
                changed = [now for then, now in pairwise([[*row.token_ids], *passes]) if now != then]
                assert [canvas for _, canvas in replay(row.token_ids, one.events)] == changed
                assert one.cost.steps == len(passes)
                n_passes += len(passes)
    return n_passes


@pytest.mark.parametrize(("attention", "facts", "changes"), [*WAYS, *IN_BLOCKS])
def test_every_way_that_the_loop_knows(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    try:
        assert n_compared(attention, facts, changes)
    except NotImplementedError:
        plain = {"temperature", "cfg_scale", "schedule", "eos_last", "small_block_length"}
        assert plain & changes.keys() or "shift" in facts


@pytest.mark.parametrize(("attention", "facts"), PATTERNS)
def test_random_settings(attention: AttentionPattern, facts: dict[str, Any]) -> None:
    """Of a pace, an order, a block length, and editing."""
    draw = random.Random(f"{attention} {facts}")
    n_settings = 0
    while n_settings < 4:
        threshold = round(draw.uniform(0.05, 0.6), 2)
        paces: list[dict[str, Any]] = [
            {},
            {"steps_per_block": draw.randint(1, 4)},
            {"steps": draw.randint(1, 9)},
            {"confidence_threshold": threshold},
            {"confidence_threshold": threshold, "steps": draw.randint(1, 9)},
            {"parallel_factor": round(draw.uniform(0.2, 2.0), 2)},
            {"entropy_bound": round(draw.uniform(0.1, 3.0), 2)},
        ]
        edits = {"editing_threshold": round(draw.uniform(0.0, 0.5), 2), "max_post_steps": draw.randint(0, 4)}
        changes = {
            **draw.choice(paces),
            **(edits if "edits" in facts else {}),
            "unmasking": draw.choice(["confidence", "entropy", "margin", "left_to_right"]),
            "block_length": draw.choice([2, 3, 4, 8]),
        }
        try:
            check_decoding(way_of(DecodingOptions(**changes), attention), edits="edits" in facts)
        except OptionError:
            continue
        assert n_compared(attention, facts, changes)
        n_settings += 1


def test_it_imports_no_part_of_the_engine() -> None:
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module.removeprefix("mdlm_lm_eval.") for module in modules if module.startswith("mdlm_lm_eval")}
    assert ours == {"decoding.canvas", "decoding.sampler", "decoding.way", "model.denoiser", "options"}


# Text of several blocks stands between slots.
APART = [[1, 2, 3], [*range(30)], [5], [*range(7, 26)], [6, 7]]
SLOTS_APART: list[tuple[AttentionPattern, dict[str, Any], dict[str, Any]]] = [
    (FROM_PROMPT, {}, {}),
    (FROM_START, {}, {"temperature": 0.7}),
    (FROM_START, {"shift": True}, {"temperature": 0.7}),
    (FROM_PROMPT, {"shift": True}, {"confidence_threshold": 0.3, "temperature": 0.7}),
    (FROM_START, {"edits": True}, EDITING),
    (FROM_PROMPT, {"edits": True, "shift": True}, EDITING),
    (FROM_START, {}, {**MULTI_BLOCK, "temperature": 0.7}),
    (FROM_PROMPT, {}, MULTI_BLOCK),
]


@pytest.mark.parametrize(("attention", "facts", "changes"), SLOTS_APART)
def test_text_between_slots_costs_no_pass_and_moves_no_draw(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    """`cache=exact` writes what `cache=none` writes, and what the reference loop writes where it knows the way."""
    options = DecodingOptions(**{"early_exit": False, "trace": True, "n_masks": 6, **changes})
    with in_float64():
        denoiser = denoiser_of(attention, **facts)
        way = way_of(options, denoiser.attention)
        where: dict[str, Any] = {"mask_token_id": MASK, "max_length": 128}
        rows = [build_infill_canvas(APART, way, seed=seed, **where)[0] for seed in range(4)]
        stored = decode_canvases(denoiser, rows, options, batch_size=3)
        computed = decode_canvases(denoiser, rows, replace(options, cache="none"), batch_size=3)
        for row, one, other in zip(rows, stored, computed, strict=True):
            assert {event.position for event in one.events} == set(row.slots)
            last = replay(row.token_ids, one.events)[-1][1]
            assert last == replay(row.token_ids, other.events)[-1][1]
            if changes in ({}, EDITING) and "shift" not in facts:
                assert decode_one(denoiser, row, options)[-1] == last
            assert one.token_ids == other.token_ids
            assert one.cost.steps == other.cost.steps
            # Beside its steps, a row runs its prompt, and each block that others follow once more.
            assert one.cost.forward_passes <= one.cost.steps + 1 + len(row.block_lengths) - 1
