"""The trace of an answer: which pass wrote each token, how sure the model was, and how often it was rewritten."""

from typing import Any

import lm_eval
import pytest
import torch

from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.canvases import IN_BLOCKS, MASK, WAYS, canvas, model, neighbours
from tests.conftest import suite


@pytest.mark.parametrize("changes", [changes for _, _, changes in WAYS])
def test_each_token_has_the_pass_that_wrote_it_and_its_probability_then(changes: dict[str, Any]) -> None:
    denoiser, options = model(), DecodingOptions().override({**changes, "early_exit": False, "trace": True})
    one = canvas(denoiser, options)
    (found,) = decode_canvases(denoiser, [one], options)
    final = [*one.token_ids[: one.slots[0]], *found.token_ids]
    seen = [states[0].tolist() for states in denoiser.inputs] + [final]
    for slot, token, filled in zip(one.slots, found.token_ids, found.trace, strict=True):
        assert seen[filled.step - 1][slot] == MASK
        assert seen[filled.step][slot] == token
        assert filled.edits == 0
        if not {"temperature", "cfg_scale", "eos_last"} & changes.keys():
            with torch.no_grad():
                logits = denoiser.model(torch.tensor([seen[filled.step - 1]])).logits[0, slot]
            logits[MASK] = -torch.inf
            assert filled.confidence == pytest.approx(logits.softmax(0)[token].item(), abs=1e-5)


@pytest.mark.parametrize(("attention", "facts", "changes"), IN_BLOCKS)
def test_tracing_changes_no_token_and_neighbours_no_trace(
    attention: Any, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    denoiser, options = model(attention, **facts), DecodingOptions().override(changes)
    rows = neighbours(denoiser, options)
    plain = decode_canvases(denoiser, rows, options)
    traced = decode_canvases(denoiser, rows, options.override({"trace": True}), batch_size=3)
    assert [one.token_ids for one in plain] == [one.token_ids for one in traced]
    assert not any(one.trace for one in plain)
    for row, one in [*zip(rows, traced, strict=True)][1::3]:
        (alone,) = decode_canvases(denoiser, [row], options.override({"trace": True}))
        assert [(f.step, f.edits) for f in alone.trace] == [(f.step, f.edits) for f in one.trace]
    for one in traced:
        assert len(one.trace) == len(one.token_ids)
        assert all(0 < f.step <= one.cost.forward_passes and 0 < f.confidence <= 1 for f in one.trace)
    if changes.get("unmasking") == "left_to_right":
        assert all(list(one.trace) == sorted(one.trace) for one in traced)
    assert any(f.edits for one in traced for f in one.trace) == ("editing_threshold" in changes)


def test_tokens_that_were_taken_back_count_as_edits() -> None:
    denoiser, options = model(), DecodingOptions(remasking="remdm", trace=True)
    (found,) = decode_canvases(denoiser, [canvas(denoiser, options)], options)
    # Each pass writes one token, a rewritten one again.
    assert sum(1 + one.edits for one in found.trace) == found.cost.steps
    assert any(one.edits for one in found.trace)


def test_a_result_holds_the_traces_of_answers_up_to_their_end() -> None:
    lm = MDLM(trace=True, unmasking="left_to_right", batch_size=2)
    result = lm_eval.simple_evaluate(
        lm, tasks=["mdlm_reversal_reversed"], limit=3, bootstrap_iters=0, task_manager=suite()
    )
    traces = result["config"]["mdlm"]["tasks"]["mdlm_reversal_reversed"]["trace"]
    assert [one["doc_id"] for one in traces] == [0, 1, 2]
    samples = {sample["doc_id"]: sample["resps"][0][0] for sample in result["samples"]["mdlm_reversal_reversed"]}
    for one in traces:
        assert one["text"] == samples[one["doc_id"]]
        steps = list(map(int, one["steps"].split()))
        assert steps == list(range(1, len(steps) + 1))
        assert int(one["ends"].split()[-1]) == len(one["text"])
        assert len(one["confidence"].split()) == len(one["edits"].split()) == len(steps)


def test_no_trace_of_what_is_drafted() -> None:
    lm = MDLM()
    with pytest.raises(OptionError, match="trace"):
        lm._check(DecodingOptions(mode="linear_spec", trace=True), AttentionPattern(4, causal_context=True))
