"""Slots are refilled: answers and costs are those of single rows, few slots run empty; and the trace of an answer."""

from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding.candidates import uniform_numbers
from mdlm_lm_eval.decoding.canvas import Canvas, Completion
from mdlm_lm_eval.decoding.decode import completions_of, decode_canvases
from mdlm_lm_eval.decoding.trace import Filled, filled
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import evaluate
from tests.support.canvases import APPROXIMATE, EOS, FROM_START, IN_BLOCKS, MASK, WAYS, canvas, model, neighbours
from tests.support.logged_traces import canvases_of

STOPS = set(range(0, 46, 5))


def is_decided(written: list[int]) -> bool:
    return not STOPS.isdisjoint(written)


# A block's tokens are final when the block is done.
REMASKING: list[Any] = [
    (FULL_ATTENTION, {}, {"sampler": "wino", "confidence_threshold": 0.2, "remask_threshold": 0.5, "block_length": 4}),
    (FULL_ATTENTION, {}, {"sampler": "wino", "confidence_threshold": 0.4, "block_length": 3, "temperature": 0.7}),
    (FULL_ATTENTION, {}, {"sampler": "remdm", "block_length": 4}),
    (FULL_ATTENTION, {}, {"sampler": "remdm", "block_length": 2, "remask_tokens": 2, "unmasking": "margin"}),
]


@pytest.mark.parametrize(("attention", "facts", "changes"), [*WAYS, *IN_BLOCKS, *APPROXIMATE])
def test_a_row_depends_on_itself_alone(attention: Any, facts: dict[str, Any], changes: dict[str, Any]) -> None:
    """In a batch, and in slots that others leave: its tokens and its cost. Nor does what is remembered change it."""
    denoiser, options = model(attention, **facts), DecodingOptions(**changes)
    rows = neighbours(denoiser, options, 4, most=12)
    whole = decode_canvases(denoiser, rows, options, eos_ids=[EOS])
    for row, completion in zip(rows, whole, strict=True):
        assert MASK not in completion.token_ids
        assert len(completion.token_ids) == row.n_returned or completion.token_ids[-1] == EOS
    if attention.is_block_causal:
        recomputed = decode_canvases(denoiser, rows, replace(options, cache="none"), eos_ids=[EOS])
        assert [row.token_ids for row in recomputed] == [row.token_ids for row in whole]
        assert [row.cost.steps for row in recomputed] == [row.cost.steps for row in whole] or "edits" in facts
    ends: dict[str, Any] = {"eos_ids": [EOS], "is_decided": is_decided}
    assert whole[::3] == [decode_canvases(denoiser, [row], options, eos_ids=[EOS])[0] for row in rows[::3]]
    alone = [decode_canvases(denoiser, [row], options, **ends)[0] for row in rows[::-1]]
    steps: list[int] = []
    way = way_of(options, attention)
    found = dict(completions_of(denoiser, rows[::-1], way, batch_size=3, advance=steps.append, **ends))
    assert [found[n] for n in range(len(rows))] == alone
    assert sum(steps) == sum(row.cost.steps for row in alone)


@pytest.mark.parametrize(("attention", "facts", "changes"), [*WAYS, *IN_BLOCKS, *REMASKING])
def test_early_exit_changes_no_answer(attention: Any, facts: dict[str, Any], changes: dict[str, Any]) -> None:
    denoiser = model(attention, **facts)

    def answers(**more: bool) -> tuple[list[list[int]], int]:
        options = DecodingOptions(**{**changes, **more, "n_masks": 12})
        rows = [canvas(denoiser, options, 3 + n, 6, n) for n in range(6)]
        before = denoiser.canvas_count
        completions = decode_canvases(denoiser, rows, options, eos_ids=[EOS], is_decided=is_decided)
        texts = [takewhile(lambda token: token not in STOPS | {EOS}, row.token_ids) for row in completions]
        return [*map(list, texts)], denoiser.canvas_count - before

    (with_exit, few), (without, many) = answers(), answers(early_exit=False)
    assert with_exit == without
    assert few < many if changes == {} or "sampler" in changes else few <= many


@pytest.mark.parametrize(
    ("attention", "changes", "occupancy", "waiting"),
    [
        (FULL_ATTENTION, {"block_length": 4}, 0.95, 1.0),
        (FULL_ATTENTION, {"block_length": 4, "cache": "dual"}, 0.78, 1.1),  # rows wait for passes of whole canvases
        (FROM_START, {}, 0.88, 1.0),  # some of these few passes run the prompts of half as many rows
    ],
)
def test_few_slots_run_empty(
    attention: AttentionPattern, changes: dict[str, Any], occupancy: float, waiting: float
) -> None:
    """Row-passes of 64 unequal requests over rows times passes."""
    denoiser, options = model(attention), DecodingOptions(**{**changes, "confidence_threshold": 0.3})
    asked = [canvas(denoiser, options, 1 + 7 * n % 20, 1 + 5 * n % 14, n) for n in range(64)]
    asked.sort(key=lambda one: -one.n_returned)  # as lm_eval's requests are
    rows = decode_canvases(denoiser, asked, options, batch_size=8)
    row_passes = sum(row.cost.forward_passes for row in rows)
    assert row_passes <= denoiser.canvas_count <= waiting * row_passes  # on a CPU empty slots are not run
    assert row_passes >= occupancy * 8 * denoiser.forward_passes


def test_drawn_numbers_are_uniform_and_each_slots_own() -> None:
    rows, steps, slots = (torch.arange(n) for n in (20, 20, 50))
    numbers = uniform_numbers(rows[:, None, None] + 2**62, steps[:, None], slots)
    assert numbers.shape == (20, 20, 50)
    assert 0.0 <= numbers.min() < numbers.max() < 1.0
    assert numbers.flatten().unique().numel() > 19_900
    shares = numbers.histc(10, 0, 1) / numbers.numel()
    assert (shares - 0.1).abs().max() < 0.01
    for axis in range(3):
        assert (numbers.mean(axis) - 0.5).abs().max() < 0.3


def trace_of(row: Canvas, found: Completion) -> list[Filled]:
    return filled(found.events, row.slots[: len(found.token_ids)], MASK)


@pytest.mark.parametrize("changes", [changes for _, _, changes in WAYS])
def test_each_token_has_the_pass_that_wrote_it_and_its_probability_then(changes: dict[str, Any]) -> None:
    denoiser, options = model(), DecodingOptions(**{**changes, "early_exit": False, "trace": True})
    one = canvas(denoiser, options)
    (found,) = decode_canvases(denoiser, [one], options)
    final = [*one.token_ids[: one.slots[0]], *found.token_ids]
    seen = [states[0].tolist() for states in denoiser.inputs] + [final]
    for slot, token, by in zip(one.slots, found.token_ids, trace_of(one, found), strict=True):
        assert seen[by.step - 1][slot] == MASK
        assert seen[by.step][slot] == token
        assert by.edits == 0
        if not {"temperature", "cfg_scale", "eos_last"} & changes.keys():
            with torch.no_grad():
                logits = denoiser.model(torch.tensor([seen[by.step - 1]])).logits[0, slot]
            logits[MASK] = -torch.inf
            assert by.confidence == pytest.approx(logits.softmax(0)[token].item(), abs=1e-5)


@pytest.mark.parametrize(("attention", "facts", "changes"), IN_BLOCKS)
def test_tracing_changes_no_token_and_neighbours_no_trace(
    attention: Any, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    denoiser, options = model(attention, **facts), DecodingOptions(**changes)
    rows = neighbours(denoiser, options, 4, most=12)
    plain = decode_canvases(denoiser, rows, options)
    traced = decode_canvases(denoiser, rows, replace(options, trace=True), batch_size=3)
    assert [one.token_ids for one in plain] == [one.token_ids for one in traced]
    assert not any(one.events for one in plain)
    for row, one in [*zip(rows, traced, strict=True)][1::3]:
        (alone,) = decode_canvases(denoiser, [row], replace(options, trace=True))
        assert [event[:-1] for event in alone.events] == [event[:-1] for event in one.events]
    traces = [trace_of(*pair) for pair in zip(rows, traced, strict=True)]
    for one, trace in zip(traced, traces, strict=True):
        assert all(0 < f.step <= one.cost.forward_passes and 0 < f.confidence <= 1 for f in trace)
    if changes.get("unmasking") == "left_to_right":
        assert all(trace == sorted(trace) for trace in traces)
    assert any(f.edits for trace in traces for f in trace) == ("editing_threshold" in changes)


def test_tokens_that_were_taken_back_count_as_edits() -> None:
    denoiser, options = model(), DecodingOptions(sampler="remdm", trace=True)
    one = canvas(denoiser, options)
    (found,) = decode_canvases(denoiser, [one], options)
    trace = trace_of(one, found)
    # Each pass writes one token, a rewritten one again.
    assert sum(1 + each.edits for each in trace) == sum(event.new != MASK for event in found.events) <= found.cost.steps
    assert any(each.edits for each in trace)


def test_a_result_holds_the_traces_of_answers_up_to_their_end() -> None:
    lm = MDLM(trace=True, unmasking="left_to_right", batch_size=2)
    result = evaluate(lm, ["mdlm_reversal_reversed"], limit=3)
    traces = result["config"]["mdlm"]["tasks"]["mdlm_reversal_reversed"]["trace"]
    assert [one["doc_id"] for one in traces] == [0, 1, 2]
    samples = {sample["doc_id"]: sample["resps"][0][0] for sample in result["samples"]["mdlm_reversal_reversed"]}
    for one in traces:
        assert one["text"] == samples[one["doc_id"]]
        steps = list(map(int, one["steps"].split()))
        assert steps == list(range(1, len(steps) + 1))
        assert int(one["ends"].split()[-1]) == len(one["text"])
        assert len(one["confidence"].split()) == len(one["edits"].split()) == len(steps)


def test_results_keep_the_canvas_by_document_and_repetition(checkpoint: Path, task_folder: Path) -> None:
    """What is logged rebuilds the canvas, whose tokens spell the answers of lm-eval's samples."""
    # With this seed the last two tokens of some answers are one character.
    lm = MDLM(str(checkpoint), device="cpu", batch_size=4, trace=True, n_masks=6, steps=3, seed=7)
    result = evaluate(lm, ["tiny_sampled"], task_folder)
    recorded = result["config"]["mdlm"]["tasks"]["tiny_sampled"]
    traces, spelled = recorded["trace"], recorded["trace_tokens"]
    assert [(one["doc_id"], one["repetition"]) for one in traces] == [(doc, n) for doc in range(5) for n in range(3)]
    answers = {sample["prompt_hash"]: sample["resps"][0] for sample in result["samples"]["tiny_sampled"]}
    assert len(answers) == 5
    for one in traces:
        begin, canvases = canvases_of(one)
        assert begin == [2] * 6
        assert one["blocks"] == "6"
        n_kept = len(one["steps"].split())
        ids = canvases[-1][:n_kept]
        assert [spelled[id] for id in ids] == [lm.tokenizer.decode([id]) for id in ids]
        text = lm.tokenizer.decode(ids, skip_special_tokens=True)
        assert text == one["text"] == answers[one["prompt_hash"]][one["repetition"]]


@pytest.mark.parametrize(
    ("attention", "changes"),
    [(FULL_ATTENTION, {}), (FROM_START, {}), (FULL_ATTENTION, {"cache": "dual", "block_length": 4})],
)
def test_batch_invariant_answers_in_bfloat16_depend_on_no_other_row(attention: Any, changes: dict[str, Any]) -> None:
    """Over batch sizes, orders of refilling, and a second run; without the option, some answers differ."""
    found = {}
    for is_invariant in (True, False) if attention is FULL_ATTENTION and not changes else (True,):
        denoiser = model(attention)
        denoiser.model.to(torch.bfloat16)
        options = DecodingOptions(**(changes | {"batch_invariant": is_invariant}))
        rows = neighbours(denoiser, options, 9, most=6)
        orders = [(8, 1), (1, 1), (64, 1), (3, -1), (8, 1)]
        answers = [
            [row.token_ids for row in decode_canvases(denoiser, rows[::order], options, batch_size=size)][::order]
            for size, order in orders
        ]
        found[is_invariant] = sum(a != b for other in answers[1:] for a, b in zip(answers[0], other, strict=True))
    assert found.pop(True) == 0
    assert all(found.values())


def test_fixed_shapes_change_no_token_in_float32() -> None:
    denoiser = model(FROM_START)
    options = DecodingOptions()
    rows = neighbours(denoiser, options)
    plain = decode_canvases(denoiser, rows, options, eos_ids=[EOS])
    fixed = decode_canvases(denoiser, rows, replace(options, batch_invariant=True), eos_ids=[EOS])
    assert [row.token_ids for row in fixed] == [row.token_ids for row in plain]
    assert [row.cost.forward_passes for row in fixed] == [row.cost.forward_passes for row in plain]
