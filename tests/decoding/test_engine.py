"""Traces of answers, answers that do not depend on the batch in bfloat16, and the numbers that decoding draws."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding.candidates import uniform_numbers
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.trace import filled
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import FULL_ATTENTION
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import evaluate
from tests.support.canvases import FROM_START, MASK, canvas, model, neighbours
from tests.support.frozen_runs import difference, frozen, recorded
from tests.support.logged_traces import canvases_of


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


def test_tokens_that_were_taken_back_count_as_edits() -> None:
    denoiser, options = model(), DecodingOptions(sampler="remdm", trace=True)
    one = canvas(denoiser, options)
    (found,) = decode_canvases(denoiser, [one], options)
    trace = filled(found.events, one.slots, MASK)
    # Each pass writes one token, a rewritten one again.
    assert sum(1 + each.edits for each in trace) == sum(event.new != MASK for event in found.events) <= found.cost.steps
    assert any(each.edits for each in trace)


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


# Frozen runs


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_runs_are_as_they_were_frozen(part: int) -> None:
    runs = frozen()[part::21]  # of each way of decoding now one of its four variants, now another one
    differing = [(run, names) for run, record in runs if (names := difference(record, recorded(run)))]
    assert not differing
