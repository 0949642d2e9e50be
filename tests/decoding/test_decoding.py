"""Decoding: schedules, unmasking orders, sampling, parallel rules, and what is refused."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked
from mdlm_lm_eval.decoding.canvas import build_infill_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.selection import unmask_counts
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import data, refused
from tests.support.canvases import FROM_START, MASK, PAD, VOCABULARY, model

# Schedules


@pytest.mark.parametrize(("n_masks", "steps", "schedule", "counts"), data("cases.json")["unmask counts"])
def test_unmask_counts(n_masks: int, steps: int, schedule: str, counts: list[int]) -> None:
    assert unmask_counts(n_masks, steps, schedule) == counts


# Unmasking orders and proposals


def proposal(probabilities: list[list[float]], *, end_ids=(), banned_ids=(), uniform=0.5, **changes):
    logits = torch.tensor(probabilities).log()
    where = WhereMasked(
        torch.arange(len(logits)),
        random_numbers=torch.full((len(logits),), 0.5),
        uniform=torch.full((len(logits),), uniform),
    )
    return Proposer(DecodingOptions(**changes), banned_ids, end_ids).propose(logits, where)


def test_confidences_are_renormalised_without_eos_where_it_comes_last() -> None:
    """The reference's sampler takes EOS out of the softmax; issue 11's example."""
    rows = [[0.40, 0.05, 0.35, 0.20], [0.05, 0.50, 1e-9, 0.45]]
    assert proposal(rows, end_ids=[2]).priority.argmax() == 1
    last = proposal(rows, end_ids=[2], eos_last=True)
    assert last.priority.argmax() == 0
    torch.testing.assert_close(last.confidence, torch.tensor([0.40 / 0.65, 0.50]))


@pytest.mark.parametrize("unmasking", ["confidence", "margin", "entropy"])
def test_a_position_that_predicts_eos_comes_last_in_every_order_that_asks_the_model(unmasking: str) -> None:
    rows = [[0.01, 0.01, 0.98], [0.34, 0.33, 0.33]]
    last = proposal(rows, end_ids=[2], eos_last=True, unmasking=unmasking)
    assert last.tokens.tolist() == [2, 0]
    assert last.priority.argsort(descending=True).tolist() == [1, 0]
    assert proposal([[math.nan] * 3], end_ids=[0], eos_last=True, unmasking=unmasking).priority.isnan().all()


def test_sampling_follows_temperature_top_p_and_top_k() -> None:
    rows = [[0.1, 0.6, 0.3]]

    def shares(**changes: float) -> list[float]:
        n = 2000
        where = WhereMasked(torch.arange(n), uniform=(torch.arange(n) + 0.5) / n)
        tokens = Proposer(DecodingOptions(**changes)).propose(torch.tensor(rows * n).log(), where).tokens
        return (tokens.bincount(minlength=3) / n).tolist()

    assert shares(temperature=1.0) == pytest.approx([0.1, 0.6, 0.3], abs=2e-3)
    assert shares(temperature=0.5) == pytest.approx([0.01 / 0.46, 0.36 / 0.46, 0.09 / 0.46], abs=2e-3)
    assert shares(temperature=1.0, top_k=2) == pytest.approx([0.0, 2 / 3, 1 / 3], abs=2e-3)
    assert shares(temperature=1.0, top_p=0.7) == pytest.approx([0.0, 2 / 3, 1 / 3], abs=2e-3)
    assert shares(temperature=1.0, top_p=0.5) == [0.0, 1.0, 0.0]
    assert shares(temperature=0.0) == [0.0, 1.0, 0.0]


# The loop


def test_guidance_keeps_what_was_unmasked_among_the_text() -> None:
    denoiser, options = model(), DecodingOptions(steps=2, cfg_scale=1.0, unmasking="left_to_right")
    infill, _ = build_infill_canvas([[1, 2], [4], [5]], way_of(options), mask_token_id=MASK, max_length=128)
    seen: list[list[int]] = []
    denoiser.model.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: seen.extend(inputs[0].tolist())
    )
    (row,) = decode_canvases(denoiser, [infill], options)
    first, _ = row.token_ids
    assert row.cost.tokens == sum(map(len, seen))
    assert seen[2] == [1, 2, first, 4, MASK, 5]
    assert seen[3] == [MASK, MASK, first, MASK, MASK, MASK]


# The public function


def test_decode_returns_the_whole_canvas_by_default() -> None:
    denoiser, options = model(), DecodingOptions(n_masks=6, steps=2)
    both = decode(denoiser, [[1, 2, 3], [4]], options)
    assert [len(tokens) for tokens in both] == [6, 6]
    assert decode(denoiser, [[4]], options) == both[1:]
    assert decode(denoiser, [[1, 2, 3]], options, max_gen_toks=2) == [both[0][:2]]
    assert decode(denoiser, [[1, 2, 3]], options, stop_ids=[both[0][3]])[0][-1] == both[0][3]
    repeated = decode(denoiser, [[1, 2, 3]] * 3, DecodingOptions(n_masks=6, temperature=1.0))
    assert len(set(map(tuple, repeated))) > 1
    assert decode(denoiser, [[1, 2, 3]] * 3, DecodingOptions(n_masks=6, temperature=1.0, seed=1)) != repeated
    assert decode(denoiser, [], options) == []


def certain_model(attention: AttentionPattern, **facts: Any) -> Denoiser:
    """Logits so far apart that every confidence is 1 exactly."""
    denoiser = model(attention, **facts)
    with torch.no_grad():
        denoiser.model.lm_head.weight *= 1e4
    return denoiser


# Parallel rules


@pytest.mark.parametrize("rule", [{"parallel_factor": 1e-9}, {"entropy_bound": 0.0}, {"confidence_threshold": 1.0}])
def test_a_rule_that_accepts_nothing_fills_one_mask_a_step(rule: dict[str, float]) -> None:
    options = DecodingOptions(n_masks=8)
    denoiser = model()
    completions = decode(denoiser, [[1, 2, 3]], replace(options, **rule))
    # The factor rule takes the last two masks together, as its reference does.
    assert denoiser.forward_passes == (7 if "parallel_factor" in rule else 8)
    if "parallel_factor" not in rule:
        assert completions == decode(denoiser, [[1, 2, 3]], options)


def test_a_parallel_rule_takes_what_the_schedule_leaves_first_and_not_last() -> None:
    options = DecodingOptions(n_masks=8, steps_per_block=7, schedule="dream", confidence_threshold=1.0)
    (row,) = decode(model(FROM_START), [[5] * 8], replace(options, block_length=8), return_completions=True)
    assert [*Counter(event.step for event in row.events).values()] == [2, *[1] * 6]


def test_a_threshold_is_reached_under_full_attention_and_exceeded_in_blocks() -> None:
    """As in Fast-dLLM's samplers and in those of the block diffusion families."""
    passes = []
    for attention in (FULL_ATTENTION, AttentionPattern(16)):
        denoiser = certain_model(attention)
        decode(denoiser, [[1, 2, 3]], DecodingOptions(n_masks=8, confidence_threshold=1.0))
        passes.append(denoiser.forward_passes)
    assert passes == [1, 8]


def test_an_edit_needs_more_confidence_than_its_threshold() -> None:
    denoiser = certain_model(AttentionPattern(8), edits=True)
    options = DecodingOptions(n_masks=13)
    unedited, at_1, below_1 = (
        decode(denoiser, [[1, 2, 3]], replace(options, editing_threshold=threshold)) for threshold in (None, 1.0, 0.5)
    )
    assert unedited == at_1 != below_1


# What a model cannot serve


@pytest.mark.parametrize(("kind", "changes", "message"), refused("attention"))
def test_options_without_use_are_refused_before_the_first_pass(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    attention, *facts = kind.split(", ")
    denoiser = model(FULL_ATTENTION if attention == "full" else FROM_START, **dict.fromkeys(facts, True))
    with pytest.raises(OptionError, match=message):
        decode(denoiser, [[1, 2, 3]], replace(DecodingOptions(n_masks=8), **changes))
    assert denoiser.forward_passes == 0


def test_an_encoder_keeps_no_keys_and_values() -> None:
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=1)
    bert = Denoiser(BertForMaskedLM(config).eval(), mask_token_id=MASK, pad_token_id=PAD)
    with pytest.raises(OptionError, match="a masked language model keeps no keys and values"):
        decode(bert, [[1, 2]], DecodingOptions(n_masks=4, block_length=2, cache="dual"))
