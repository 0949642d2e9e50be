"""Slots are refilled: answers and costs are those of single rows, and few slots run empty."""

from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.canvas import Canvas, build_canvas
from mdlm_lm_eval.decoding.completion import Completion
from mdlm_lm_eval.decoding.memory import row_memory, rows_that_fit
from mdlm_lm_eval.decoding.proposals import uniform_numbers
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import random_llama

MASK, PAD, EOS, VOCABULARY = 49, 48, 47, 50
BLOCKS = AttentionPattern(4)
CASES: list[tuple[AttentionPattern, dict[str, Any], dict[str, Any]]] = [
    (FULL_ATTENTION, {}, {"steps": 6, "unmasking": "margin"}),
    (FULL_ATTENTION, {}, {"confidence_threshold": 0.3, "block_length": 4}),
    (FULL_ATTENTION, {}, {"temperature": 0.8, "unmasking": "random", "cfg_scale": 1.0}),
    (FULL_ATTENTION, {}, {"cache": "prefix", "block_length": 4, "entropy_bound": 1.0}),
    (FULL_ATTENTION, {"shift": True}, {"cache": "dual", "block_length": 4, "confidence_threshold": 0.3}),
    (BLOCKS, {}, {"confidence_threshold": 0.3, "temperature": 0.5}),
    (BLOCKS, {}, {"cache": "none", "cfg_scale": 0.5}),
    (BLOCKS, {"edits": True}, {"editing_threshold": 0.1, "confidence_threshold": 0.1}),
    (BLOCKS, {"shift": True}, {"small_block_length": 2}),
    (AttentionPattern(4, "prompt_end"), {"shift": True}, {"cfg_scale": 0.5}),
]


def canvases(n: int, options: DecodingOptions, attention: AttentionPattern, most: int = 14) -> list[Canvas]:
    draw = Random(1)
    rows = []
    for seed in range(n):
        prompt, length = draw.choices(range(40), k=draw.randint(1, 20)), draw.randint(1, most)
        rows.append(
            build_canvas(
                prompt,
                options,
                mask_token_id=MASK,
                max_length=128,
                request_gen_toks=length,
                seed=seed,
                attention=attention,
            )[0]
        )
    return rows


@pytest.mark.parametrize(("attention", "facts", "changes"), CASES)
def test_rows_that_take_freed_slots_are_those_of_single_rows(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    denoiser = Denoiser(random_llama(VOCABULARY), mask_token_id=MASK, pad_token_id=PAD, attention=attention, **facts)
    options = DecodingOptions().override(changes)
    rows = canvases(9, options, attention)
    stops = set(range(0, 46, 5))
    for settings in ({}, {"is_decided": lambda written: not stops.isdisjoint(written)}):
        alone = [decode_canvases(denoiser, [row], options, eos_ids=[EOS], **settings)[0] for row in rows]
        found: dict[int, Completion] = {}
        steps: list[int] = []
        refilled = decode_canvases(
            denoiser,
            rows,
            options,
            eos_ids=[EOS],
            batch_size=3,
            finished=found.__setitem__,
            advance=steps.append,
            **settings,
        )
        assert refilled == alone  # the cost too
        assert [found[n] for n in range(9)] == alone
        assert sum(steps) == sum(row.cost.steps for row in alone)


@pytest.mark.parametrize(
    ("attention", "changes"),
    [
        (FULL_ATTENTION, {"block_length": 4}),
        (FULL_ATTENTION, {"block_length": 4, "cache": "dual"}),
        (BLOCKS, {}),
    ],
)
def test_few_slots_run_empty(attention: AttentionPattern, changes: dict[str, Any]) -> None:
    """Row-passes of 64 unequal requests over rows times passes."""
    denoiser = Denoiser(random_llama(VOCABULARY), mask_token_id=MASK, pad_token_id=PAD, attention=attention)
    options = DecodingOptions().override({**changes, "confidence_threshold": 0.3})
    asked = sorted(canvases(64, options, attention), key=lambda one: -one.n_returned)  # as lm_eval's requests are
    rows = decode_canvases(denoiser, asked, options, batch_size=8)
    row_passes = sum(row.cost.forward_passes for row in rows)
    assert row_passes == denoiser.canvas_count  # on a CPU empty slots are not run
    if "cache" not in changes and not attention.is_block_causal:  # there, passes of prompts are of few rows
        assert row_passes >= 0.95 * 8 * denoiser.forward_passes


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


def test_a_budget_of_bytes_fills_an_h200_and_spares_a_small_card() -> None:
    """LLaDA-8B: 90 kB of activations and 512 kB of keys and values a token, logits of 126,464 tokens a position."""
    llada = LlamaConfig(
        vocab_size=126_464,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
    )
    one_step = row_memory(llada, length=1024, n_logits=1, itemsize=2)
    assert one_step.activations == 1024 * 90_112
    dual = row_memory(llada, length=1024, n_logits=32, itemsize=2, is_cached=True)
    assert dual.remembered == 1024 * 2**19
    free = 122 * 2**30  # an H200 with the weights on it
    assert rows_that_fit(one_step, free, most=4096) == 1024
    assert rows_that_fit(dual, free, most=4096) == 128
    assert rows_that_fit(dual, free, most=64) == 64
    assert rows_that_fit(dual, 6 * 2**30, most=64) == 4
    assert rows_that_fit(dual, 2**30, most=64) == 1
