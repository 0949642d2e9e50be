"""Samplers of 2026: tokens and passes of their reference code, pass by pass."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.trace import replay
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.support.canvases import APPROXIMATE, FROM_START, IN_BLOCKS, WAYS, Way, canvas, model
from tests.support.reference import facts_of, load, tensors_of

ROWS = (0, 1)


@cache
def loaded(checkpoint: str) -> Denoiser:
    return load(checkpoint, mask_token_id=159)


def canvas_of(denoiser: Denoiser, prompt: list[int], options: DecodingOptions) -> Canvas:
    return build_canvas(prompt, way_of(options, denoiser.attention), mask_token_id=159, max_length=128)[0]


def expected(folder: str, number: int, row: int) -> tuple[list[int], list[int]]:
    """A row's prompt, and what the reference made of its masks."""
    prompt, completion = (tensors_of(folder)[f"generate.{number}.{name}.{row}"] for name in ("prompt", "completion"))
    return prompt.tolist(), completion.tolist()


def tokens_per_pass(found: Completion) -> list[int]:
    counts = Counter(event.step for event in found.events if event.confidence > 0.0)  # others follow from an end
    return [counts[step] for step in range(1, found.cost.forward_passes + 1)]


def check(folder: str, number: int, options: DecodingOptions, end_ids: set[int]) -> None:
    """Both rows as a batch. With remembered keys and values, the prompt is a pass of its own."""
    setting = facts_of(folder)["generate"][number]
    denoiser = loaded(setting["checkpoint"])
    options = replace(options, n_masks=setting["gen_length"], block_length=setting["block_length"], trace=True)
    rows = [canvas_of(denoiser, expected(folder, number, row)[0], options) for row in ROWS]
    found = decode_canvases(denoiser, rows, options, eos_ids=end_ids)
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


FREEDAVE = facts_of("freedave")["generate"]


@pytest.mark.parametrize("number", range(len(FREEDAVE)))
def test_decoding_does_as_freedave_without_drafts(number: int) -> None:
    """Its drafts, which change no token, are not offered. Its count includes a pass that remembers the last block."""
    setting = FREEDAVE[number]
    denoiser, n_stored = loaded(setting["checkpoint"]), setting["attention"] == "block_causal"
    cache = "auto" if n_stored else setting["cache"]
    options = DecodingOptions(n_masks=setting["gen_length"], block_length=setting["block_length"], cache=cache)
    rows = [canvas_of(denoiser, expected("freedave", number, row)[0], options) for row in ROWS]
    found = decode_canvases(denoiser, rows, replace(options, early_exit=False))
    assert [one.token_ids for one in found] == [expected("freedave", number, row)[1] for row in ROWS]
    n_passes = [one.cost.forward_passes for one in found]
    assert n_passes == [n - n_stored for n in setting["forward_passes"]["1"]]


# Thinking


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
