"""The engine against the reference loop, pass by pass, for every sampler, rule, schedule and attention pattern."""

import ast
import random
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.decoding import reference
from mdlm_lm_eval.decoding.canvas import build_infill_canvas
from mdlm_lm_eval.decoding.decode import decode_canvases
from mdlm_lm_eval.decoding.reference import decode_one
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import SCHEDULES, DecodingOptions
from mdlm_lm_eval.registry import UNMASKING
from tests.against_reference import LIKE_NEMOTRON, PATTERNS, compared
from tests.canvases import FROM_PROMPT, FROM_START, IN_BLOCKS, MASK, WAYS, model

SAMPLERS: list[dict[str, Any]] = [
    {"sampler": "wino", "confidence_threshold": 0.2, "remask_threshold": 0.5, "block_length": 8},
    {"sampler": "wino", "confidence_threshold": 0.2, "block_length": 5},
    {"sampler": "remdm", "block_length": 8},
    {"sampler": "remdm", "remask_tokens": 2},
    {"sampler": "rcr", "steps": 4, "block_length": 8},
    {"sampler": "rcr", "steps": 7, "schedule": "maskgit_cosine", "block_length": 6},
    {"kl_threshold": 0.5, "confidence_threshold": 0.2, "block_length": 8},
    {"kl_threshold": 0.5, "confidence_threshold": 0.2, "kl_history": 3, "unmask_strategy": "max_conf"},
    {"sigma": 2.0, "block_length": 8},
    {
        "sampler": "multi_block",
        "entropy_threshold": 1.5,
        "unmasking": "entropy",
        "block_length": 4,
        "stop_at_eos": True,
    },
    {"sampler": "multi_block", "confidence_threshold": 0.3, "surest_anywhere": True, "block_length": 3},
    {
        "sampler": "multi_block",
        "confidence_threshold": 0.4,
        "active_threshold": 0.3,
        "block_length": 3,
        "temperature": 0.5,
    },
    {
        "sampler": "multi_block",
        "confidence_threshold": 0.3,
        "block_causal": True,
        "cache": "none",
        "block_length": 4,
        "cfg_scale": 0.5,
    },
    {
        "sampler": "multi_block",
        "confidence_threshold": 0.4,
        "active_threshold": 0.3,
        "block_causal": True,
        "cache": "none",
        "block_length": 3,
    },
    {"sigma": 3.0, "unmasking": "margin", "entropy_bound": 1.0, "stop_at_eos": True},
    {"sigma": 1.0, "parallel_factor": 1.2, "steps_per_block": 3, "block_length": 6},
]
EDITING = {"confidence_threshold": 0.3, "editing_threshold": 0.3}
MULTI_BLOCK = {"sampler": "multi_block", "block_causal": True, "block_length": 4, "confidence_threshold": 0.3}


def compare(attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any], *, n: int = 4) -> None:
    found = compared(attention, facts, changes, n=n, most=9)
    assert found.n_rows
    assert not found.differing


@pytest.mark.parametrize(("attention", "facts", "changes"), [*WAYS, *IN_BLOCKS])
def test_every_way_of_decoding(attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]) -> None:
    compare(attention, facts, {**changes, "cache": "none"})


@pytest.mark.parametrize("changes", SAMPLERS)
def test_every_sampler(changes: dict[str, Any]) -> None:
    compare(FULL_ATTENTION, {}, changes)


@pytest.mark.parametrize("attention", [FROM_START, FROM_PROMPT, FULL_ATTENTION])
def test_editing(attention: AttentionPattern) -> None:
    compare(attention, {"edits": True}, EDITING)


@pytest.mark.parametrize(("attention", "facts"), PATTERNS)
def test_every_pattern_with_a_random_rule_schedule_and_pace(attention: AttentionPattern, facts: dict[str, Any]) -> None:
    draw = random.Random(f"{attention} {facts}")
    paces: list[dict[str, Any]] = [{}, {"steps_per_block": 2}, {"confidence_threshold": 0.3}, {"parallel_factor": 1.0}]
    for _ in range(4):
        changes = {
            **draw.choice([*paces, {"entropy_bound": 1.0}, {"steps": draw.randint(1, 9)}]),
            "unmasking": draw.choice([*UNMASKING.names()]),
            "schedule": draw.choice(SCHEDULES),
            "temperature": draw.choice([0.0, 0.0, 0.7]),
            "cfg_scale": draw.choice([0.0, 0.5]),
            "block_length": draw.choice([2, 4]),
        }
        compare(attention, facts, changes, n=3)


def test_modes_of_a_model_with_a_causal_context() -> None:
    for changes in ({"mode": "ar"}, {"causal_context": False}, {"temperature": 0.5}):
        compare(LIKE_NEMOTRON, {}, changes)


def test_it_imports_no_part_of_the_engine() -> None:
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    imported = {
        node.module.split(".")[-1] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert imported.isdisjoint({"engine", "rows", "passes", "lanes", "windows", "batch"})


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
    """With text of several blocks between slots, `cache=exact` writes what `cache=none` and the reference write."""
    denoiser = model(attention, **facts)
    options = DecodingOptions().override({"early_exit": False, "trace": True, "n_masks": 6, **changes})
    where: dict[str, Any] = {
        "mask_token_id": MASK,
        "max_length": 128,
        "attention": options.way.attention(attention, options),
    }
    rows = [build_infill_canvas(APART, options, seed=seed, **where)[0] for seed in range(4)]
    stored = decode_canvases(denoiser, rows, options, batch_size=3)
    computed = decode_canvases(denoiser, rows, options.override({"cache": "none"}), batch_size=3)
    for row, one, other in zip(rows, stored, computed, strict=True):
        assert {event.position for event in one.events} == set(row.slots)
        assert replay(row.token_ids, one.events)[-1][1] == replay(row.token_ids, other.events)[-1][1]
        assert decode_one(denoiser, row, options)[-1] == replay(row.token_ids, one.events)[-1][1]
        assert one.token_ids == other.token_ids
        assert one.cost.steps == other.cost.steps
        # Beside its steps, a row runs its prompt, and each block that others follow once more.
        assert one.cost.forward_passes <= one.cost.steps + 1 + len(row.block_lengths) - 1
