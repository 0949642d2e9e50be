"""Samplers of 2026: tokens and passes of their reference code, pass by pass."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding import drafts, passes
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, attention_in_effect, build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.reference import decode_one
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests import canvases
from tests.reference import facts_of, load, tensors_of

ROWS = (0, 1)
WHOLE_PROMPT = AttentionPattern(4, "prompt_end", whole_prompt=True)


@cache
def loaded(checkpoint: str) -> Denoiser:
    return load(checkpoint, mask_token_id=159)


def canvas_of(denoiser: Denoiser, prompt: list[int], options: DecodingOptions) -> Canvas:
    attention = attention_in_effect(denoiser.attention, options)
    return build_canvas(prompt, options, mask_token_id=159, max_length=128, attention=attention)[0]


def expected(folder: str, number: int, row: int) -> tuple[list[int], list[int]]:
    """A row's prompt, and what the reference made of its masks."""
    prompt, completion = (tensors_of(folder)[f"generate.{number}.{name}.{row}"] for name in ("prompt", "completion"))
    return prompt.tolist(), completion.tolist()


def tokens_per_pass(found: Completion) -> list[int]:
    counts = Counter(event.step for event in found.events if event.confidence > 0.0)  # others follow from an end
    return [counts[step] for step in range(1, found.cost.forward_passes + 1)]


def as_numbers(found: Completion) -> Any:
    """All of it but for how sure the model was."""
    return found.token_ids, found.cost, [event._replace(confidence=0.0) for event in found.events]


def check(folder: str, number: int, options: DecodingOptions, end_ids: set[int]) -> None:
    """Both rows as a batch, of a third of the settings one after the other, too; one row with the loop's passes.

    With remembered keys and values, the prompt is a pass of its own.
    """
    setting = facts_of(folder)["generate"][number]
    denoiser = loaded(setting["checkpoint"])
    options = replace(options, n_masks=setting["gen_length"], block_length=setting["block_length"], trace=True)
    rows = [canvas_of(denoiser, expected(folder, number, row)[0], options) for row in ROWS]
    found = decode_canvases(denoiser, rows, options, eos_ids=end_ids)
    if number % 3 == 0:
        alone = decode_canvases(denoiser, rows, options, eos_ids=end_ids, batch_size=1)
        assert [*map(as_numbers, found)] == [*map(as_numbers, alone)]
    for row, one in zip(ROWS, found, strict=True):
        tokens = expected(folder, number, row)[1]
        ends = [n for n, token in enumerate(tokens, start=1) if token in end_ids]
        assert one.token_ids == (tokens[: ends[0]] if ends else tokens)
        runs_prompt = options.cache == "exact"
        assert one.cost.forward_passes == setting["forward_passes"][row] + runs_prompt
        assert tokens_per_pass(one)[runs_prompt:] == setting["tokens_filled"][row]
        if not options.early_exit:  # what follows an end, too
            answer = replay(rows[row].token_ids, one.events)[-1][1][rows[row].prompt_length :]
            assert answer[: len(tokens)] == tokens
        if row == number % 2 and not ends and not runs_prompt:
            whole = decode_one(denoiser, rows[row], options, end_ids=end_ids)
            assert (len(whole), whole[-1][-len(tokens) :]) == (one.cost.forward_passes, tokens)


PRIOR = facts_of("certainty_prior")["generate"]


@pytest.mark.parametrize("number", range(len(PRIOR)))
def test_certainty_prior_does_as_its_reference(number: int) -> None:
    setting = PRIOR[number]
    names = {"sigma": "sigma", "confidence_threshold": "threshold", "parallel_factor": "factor"}
    names |= {"entropy_bound": "gamma", "unmasking": "alg", "stop_at_eos": "stop_until_eos"}
    ours: dict[str, Any] = {name: setting[theirs] for name, theirs in names.items() if theirs in setting}
    steps = setting["block_length"] // setting["num_transfer_tokens"]
    options = DecodingOptions(sampler="certainty_prior", steps_per_block=steps, **ours)
    check("certainty_prior", number, options, {setting["eos_token_id"]} if "eos_token_id" in setting else set())


D3LLM = facts_of("d3llm")["generate"]


@pytest.mark.parametrize("number", [n for n, setting in enumerate(D3LLM) if setting["cache"] == "none"])
def test_multi_block_does_as_d3llm(number: int) -> None:
    setting = D3LLM[number]
    ours = {"entropy_threshold": setting["threshold"], "block_add_threshold": setting["block_add_threshold"]}
    ours |= {"surest_anywhere": setting["checkpoint"] == "fast_dllm_llada", "unmasking": "entropy"}
    ours["stop_at_eos"] = setting.get("early_stop", False)
    ends = {setting["eos_token_id"]} if "eos_token_id" in setting else set()
    check("d3llm", number, DecodingOptions(sampler="multi_block", **ours), ends)


D2F = facts_of("d2f")["generate"]


@pytest.mark.parametrize("remembered", ["none", "exact"])
@pytest.mark.parametrize("number", range(len(D2F)))
def test_multi_block_does_as_d2f(number: int, remembered: str) -> None:
    setting = D2F[number]
    ours = {"confidence_threshold": setting["threshold"], "block_add_threshold": setting["block_add_threshold"]}
    ours |= {"active_threshold": setting["decoded_token_threshold"], "unmasking": setting["order"]}
    ends = {setting["eos_token_id"]} if "eos_token_id" in setting else set()
    options = DecodingOptions(sampler="multi_block", block_causal=True, cache=remembered, early_exit=False, **ours)
    check("d2f", number, options, ends)


@pytest.mark.parametrize(
    ("attention", "several", "one"),
    [
        (FULL_ATTENTION, {"confidence_threshold": 0.3}, {"confidence_threshold": 0.3}),
        (FULL_ATTENTION, {"entropy_threshold": 0, "unmasking": "entropy"}, {"unmasking": "entropy", "steps": 64}),
        (WHOLE_PROMPT, {"confidence_threshold": 0.3, "block_causal": True}, {"confidence_threshold": 0.3}),
    ],
)
@pytest.mark.parametrize("shift", [False, True])
def test_one_active_block_is_block_decoding(
    attention: AttentionPattern, several: dict[str, Any], one: dict[str, Any], shift: bool
) -> None:
    options = DecodingOptions(block_length=4, n_masks=15, early_exit=False, trace=True)
    ours = options.override({"sampler": "multi_block", "block_add_threshold": 1, **several})
    theirs = options.override(one)
    denoisers = canvases.model(shift=shift), canvases.model(attention, shift=shift)
    found, same = (
        decode_canvases(denoiser, canvases.neighbours(denoiser, each, 5), each, batch_size=2)
        for denoiser, each in zip(denoisers, (ours, theirs), strict=True)
    )
    if attention is FULL_ATTENTION:
        assert [*map(as_numbers, found)] == [*map(as_numbers, same)]
    else:  # passes that only remember a block are none with several: its keys are those of the next one's first pass
        assert [one.token_ids for one in found] == [one.token_ids for one in same]
        assert [one.cost.steps for one in found] == [one.cost.steps for one in same]


@pytest.mark.parametrize("checkpoint", ["sdar", "llada2"])
def test_several_blocks_of_a_family_of_blocks(checkpoint: str) -> None:
    """One at a time is its own decoding, and several are the reference loop's."""
    denoiser = loaded(checkpoint)
    own = DecodingOptions(n_masks=14, confidence_threshold=0.4, early_exit=False)
    several = own.override({"sampler": "multi_block", "block_causal": True})
    found = []
    for options in (own, several.override({"block_add_threshold": 1}), several):
        rows = [canvas_of(denoiser, prompt, options) for prompt in ([5, 6, 7, 8, 9, 10], [11, 12])]
        found.append(decode_canvases(denoiser, rows, options))
    assert [one.token_ids for one in found[0]] == [one.token_ids for one in found[1]]
    for row, one in zip(rows, found[2], strict=True):
        passes_of_row = decode_one(denoiser, row, several)
        assert [passes_of_row[-1][slot] for slot in row.slots[: row.n_returned]] == one.token_ids
        assert one.cost.steps == len(passes_of_row)


def random_setting(draw: random.Random) -> tuple[AttentionPattern, dict[str, Any], dict[str, Any], int]:
    """A model's attention and other facts, options that fill one token a step, and a number of lanes."""
    attention = draw.choice([FULL_ATTENTION, FULL_ATTENTION, canvases.FROM_START, canvases.FROM_PROMPT, WHOLE_PROMPT])
    changes: dict[str, Any] = {"steps": 64, "n_masks": draw.randint(4, 24), "early_exit": draw.random() < 0.5}
    changes["block_length"] = draw.choice([2, 4, 8] if attention is not FULL_ATTENTION else [None, 3, 4])
    if attention is not FULL_ATTENTION:
        changes["cache"] = draw.choice(["auto", "auto", "none"])
        changes["small_block_length"] = draw.choice([None, None, 2])
    elif changes["block_length"]:
        changes["cache"] = draw.choice(["none", "prefix", "dual", "dual"])
    changes["unmasking"] = draw.choice(["confidence", "confidence", "entropy", "margin", "left_to_right"])
    if attention is FULL_ATTENTION and changes.get("cache", "none") == "none" and draw.random() < 0.3:
        changes |= {"sigma": 2.0, "unmasking": "confidence"}
    return attention, {"shift": draw.random() < 0.3}, changes, draw.choice([1, 1, 2, 3, 8])


def drafts_change_nothing(seed: int) -> tuple[int, int]:
    """Asserts it of a random setting; passes without drafts and with them."""
    draw = random.Random(f"drafts {seed}")
    attention, facts, changes, n_lanes = random_setting(draw)
    options = DecodingOptions().override({**changes, "trace": True})
    denoiser = canvases.model(attention, **facts)
    rows = canvases.neighbours(denoiser, options, 3)
    plain = decode_canvases(denoiser, rows, options, eos_ids=[canvases.EOS], batch_size=n_lanes)
    n_plain, denoiser.forward_passes = denoiser.forward_passes, 0
    drafting = options.override({"drafts": draw.randint(2, 5)})
    found = decode_canvases(denoiser, rows, drafting, eos_ids=[canvases.EOS], batch_size=n_lanes)
    for one, same in zip(found, plain, strict=True):
        assert one.token_ids == same.token_ids
        if not options.early_exit:
            order, plainly = (sorted(each.events, key=lambda event: event.position) for each in (one, same))
            assert [event[1:4] for event in order] == [event[1:4] for event in plainly]
            assert [event.confidence for event in order] == pytest.approx(
                [event.confidence for event in plainly], abs=1e-4
            )
        assert one.cost.forward_passes <= same.cost.forward_passes
    return n_plain, denoiser.forward_passes


@pytest.mark.parametrize("seed", range(10))
def test_drafts_change_no_token_and_cost_no_pass(seed: int) -> None:
    drafts_change_nothing(seed)


@pytest.mark.parametrize("changes", [{}, {"cache": "dual", "block_length": 4}])
def test_drafts_that_are_always_wrong_cost_no_pass(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, options = canvases.model(), DecodingOptions(steps=64, n_masks=12).override(changes)
    rows = canvases.neighbours(denoiser, options, 3)
    plain = decode_canvases(denoiser, rows, options, batch_size=1)
    right = decode_canvases(denoiser, rows, options.override({"drafts": 3}), batch_size=1)

    def wrong(*arguments: Any) -> torch.Tensor:
        rank, tokens = drafts.drafted(*arguments).unbind(1)
        return torch.stack([rank, (tokens + 1) % 40], 1)

    monkeypatch.setattr(passes, "drafted", wrong)
    found = decode_canvases(denoiser, rows, options.override({"drafts": 3}), batch_size=1)
    for one, same, drafted in zip(found, plain, right, strict=True):
        assert (one.token_ids, one.cost.forward_passes) == (same.token_ids, same.cost.forward_passes)
        assert drafted.token_ids == same.token_ids
        assert changes or one.cost.tokens == 3 * same.cost.tokens
    assert sum(one.cost.forward_passes for one in right) < sum(one.cost.forward_passes for one in plain)


FREEDAVE = facts_of("freedave")["generate"]


@pytest.mark.parametrize("number", range(len(FREEDAVE)))
def test_drafts_do_as_freedave(number: int) -> None:
    """Its count includes a pass that remembers the last block."""
    setting = FREEDAVE[number]
    denoiser, n_stored = loaded(setting["checkpoint"]), setting["attention"] == "block_causal"
    cache = "auto" if n_stored else setting["cache"]
    for n_drafts in (1, 2, 3, 4):
        options = DecodingOptions(drafts=n_drafts, n_masks=setting["gen_length"], block_length=setting["block_length"])
        options = replace(options, cache=cache, early_exit=False)
        rows = [canvas_of(denoiser, expected("freedave", number, row)[0], options) for row in ROWS]
        alone = decode_canvases(denoiser, rows, options, batch_size=1)
        assert [one.token_ids for one in alone] == [expected("freedave", number, row)[1] for row in ROWS]
        n_passes = [one.cost.forward_passes for one in alone]
        assert n_passes == [n - n_stored for n in setting["forward_passes"][str(n_drafts)]]
    together = decode_canvases(denoiser, rows, options)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
