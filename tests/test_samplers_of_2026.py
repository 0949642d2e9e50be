"""Samplers of 2026: tokens and passes of their reference code, pass by pass."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, attention_in_effect, build_canvas
from mdlm_lm_eval.decoding.reference import decode_one
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.reference import facts_of, load, tensors_of

ROWS = (0, 1)


def canvas_of(denoiser: Denoiser, prompt: list[int], options: DecodingOptions) -> Canvas:
    attention = attention_in_effect(denoiser.attention, options)
    return build_canvas(prompt, options, mask_token_id=159, max_length=128, attention=attention)[0]


def expected(folder: str, number: int, row: int) -> tuple[list[int], list[int]]:
    """A row's prompt, and what the reference made of its masks."""
    prompt, completion = (tensors_of(folder)[f"generate.{number}.{name}.{row}"] for name in ("prompt", "completion"))
    return prompt.tolist(), completion.tolist()


def tokens_per_pass(found: Completion) -> list[int]:
    counts = Counter(event.step for event in found.events)
    return [counts[step] for step in range(1, found.cost.forward_passes + 1)]


def as_numbers(found: Completion) -> Any:
    """All of it but for how sure the model was."""
    return found.token_ids, found.cost, [event._replace(confidence=0.0) for event in found.events]


def check(folder: str, number: int, options: DecodingOptions, end_ids: set[int]) -> list[Completion]:
    """Each row by itself, both as a batch, and both one after the other in one lane; with the reference loop's passes.

    Returns the completions.
    """
    setting = facts_of(folder)["generate"][number]
    denoiser = load(setting["checkpoint"], mask_token_id=159)
    options = replace(options, n_masks=setting["gen_length"], block_length=setting["block_length"], trace=True)
    rows = [canvas_of(denoiser, expected(folder, number, row)[0], options) for row in ROWS]
    found = decode_canvases(denoiser, rows, options, eos_ids=end_ids)
    alone = [decode_canvases(denoiser, [row], options, eos_ids=end_ids)[0] for row in rows]
    one_lane = decode_canvases(denoiser, rows, options, eos_ids=end_ids, batch_size=1)
    assert [*map(as_numbers, found)] == [*map(as_numbers, alone)] == [*map(as_numbers, one_lane)]
    for row, one in zip(ROWS, found, strict=True):
        tokens = expected(folder, number, row)[1]
        ends = [n for n, token in enumerate(tokens, start=1) if token in end_ids]
        assert one.token_ids == (tokens[: ends[0]] if ends else tokens)
        assert one.cost.forward_passes == setting["forward_passes"][row]
        assert tokens_per_pass(one) == setting["tokens_filled"][row]
        if not ends:
            passes = decode_one(denoiser, rows[row], options, end_ids=end_ids)
            assert (len(passes), passes[-1][-len(tokens) :]) == (one.cost.forward_passes, tokens)
    return found


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
