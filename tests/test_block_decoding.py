"""Decoding over blocks: rows at their own pace, exact and approximate caches, parallel rules, what is refused."""

import random
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from mdlm_lm_eval.decoding import decode, decode_canvases
from mdlm_lm_eval.decoding.canvas import Canvas, attention_in_effect, build_canvas, build_infill_canvas
from mdlm_lm_eval.decoding.selection import accepted_by_entropy
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.conftest import random_llama

MASK, PAD, EOS, VOCABULARY = 49, 48, 47, 50
FROM_START, FROM_PROMPT = AttentionPattern(4), AttentionPattern(4, "prompt_end")


def model(attention: AttentionPattern = FULL_ATTENTION, **facts: Any) -> Denoiser:
    """Two layers with peaked logits, so that thresholds bite and answers depend on what was filled in before."""
    llama = random_llama(VOCABULARY, num_key_value_heads=2)
    return Denoiser(llama, mask_token_id=MASK, pad_token_id=PAD, attention=attention, **facts)


def certain_model(attention: AttentionPattern, **facts: Any) -> Denoiser:
    """Logits so far apart that every confidence is 1 exactly."""
    denoiser = model(attention, **facts)
    with torch.no_grad():
        denoiser.model.lm_head.weight *= 1e4
    return denoiser


def canvas(denoiser: Denoiser, options: DecodingOptions, prompt_length: int, gen_toks: int, seed: int) -> Canvas:
    draw = random.Random(f"{prompt_length} {seed}")
    prompt = [draw.randrange(40) for _ in range(prompt_length)]
    return build_canvas(
        prompt,
        options,
        mask_token_id=MASK,
        max_length=128,
        request_gen_toks=gen_toks,
        seed=seed,
        attention=attention_in_effect(denoiser.attention, options),
    )[0]


def neighbours(denoiser: Denoiser, options: DecodingOptions) -> list[Canvas]:
    """Canvases, longer and shorter, with more and fewer masks, one of them with slots among its text."""
    rows = [canvas(denoiser, options, 1 + 3 * n, 1 + (5 * n) % 13, n) for n in range(7)]
    if options.cfg_scale == 0.0 and not denoiser.shift:
        attention = attention_in_effect(denoiser.attention, options)
        text = [[1, 2, 3, 4, 5], [6, 7], [*range(8, 18)], [1]]
        infill, _ = build_infill_canvas(text, options, mask_token_id=MASK, max_length=128, attention=attention, seed=5)
        rows.append(infill)
    return rows


BLOCK_VARIANTS: list[tuple[AttentionPattern, dict[str, Any], dict[str, Any]]] = [
    (FROM_START, {}, {}),
    (FROM_START, {}, {"block_length": 1}),
    (FROM_START, {}, {"block_length": 8, "steps_per_block": 3}),
    (FROM_START, {}, {"steps": 4, "unmasking": "margin"}),
    (FROM_START, {}, {"unmasking": "random", "temperature": 0.8}),
    (FROM_START, {}, {"unmasking": "entropy", "schedule": "cosine", "block_length": 8, "steps_per_block": 4}),
    (FROM_START, {}, {"confidence_threshold": 0.2, "block_length": 8}),
    (FROM_START, {}, {"confidence_threshold": 0.3, "block_length": 8, "small_block_length": 2}),
    (FROM_START, {}, {"parallel_factor": 0.9, "block_length": 8}),
    (FROM_START, {}, {"entropy_bound": 2.0, "block_length": 8}),
    (FROM_START, {}, {"cfg_scale": 1.0, "unmasking": "left_to_right"}),
    (FROM_START, {"edits": True}, {"editing_threshold": 0.1, "confidence_threshold": 0.1, "block_length": 8}),
    (FROM_START, {"edits": True}, {"editing_threshold": 0.0, "max_post_steps": 2}),
    (FROM_START, {"shift": True}, {"confidence_threshold": 0.3, "block_length": 8}),
    (FROM_PROMPT, {}, {"schedule": "bd3lm", "steps_per_block": 3}),
    (FROM_PROMPT, {"shift": True}, {"cfg_scale": 0.5}),
]


@pytest.mark.parametrize(("attention", "facts", "changes"), BLOCK_VARIANTS)
def test_a_row_depends_on_itself_alone_and_remembering_changes_nothing(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    denoiser = model(attention, **facts)
    options = DecodingOptions().override(changes)
    batch = neighbours(denoiser, options)
    together = decode_canvases(denoiser, batch, options, eos_ids=[EOS])
    alone = [decode_canvases(denoiser, [row], options, eos_ids=[EOS])[0] for row in batch[1::2]]
    assert together[1::2] == alone  # the cost too
    recomputed = decode_canvases(denoiser, batch, options.override({"cache": "none"}), eos_ids=[EOS])
    assert [row.token_ids for row in recomputed] == [row.token_ids for row in together]
    assert [row.cost.steps for row in recomputed] == [row.cost.steps for row in together] or "edits" in facts
    for row, completion in zip(batch, together, strict=True):
        assert MASK not in completion.token_ids
        assert len(completion.token_ids) == row.n_returned or completion.token_ids[-1] == EOS


@pytest.mark.parametrize(("attention", "facts", "changes"), BLOCK_VARIANTS)
def test_early_exit_changes_no_answer(
    attention: AttentionPattern, facts: dict[str, Any], changes: dict[str, Any]
) -> None:
    denoiser = model(attention, **facts)
    stops = set(range(0, 46, 5))

    def answers(**more: bool) -> tuple[list[list[int]], int]:
        options = DecodingOptions().override({**changes, **more, "n_masks": 16})
        rows = [canvas(denoiser, options, 3 + n, 6, n) for n in range(6)]
        before = denoiser.forward_passes
        completions = decode_canvases(
            denoiser, rows, options, eos_ids=[EOS], is_decided=lambda prefix: not stops.isdisjoint(prefix)
        )
        passes = denoiser.forward_passes - before
        cut = [row.token_ids for row in completions]
        ends = [next((n for n, token in enumerate(row) if token in stops or token == EOS), len(row)) for row in cut]
        return [row[:end] for row, end in zip(cut, ends, strict=True)], passes

    with_exit, few = answers()
    without, many = answers(early_exit=False)
    assert with_exit == without
    assert few <= many


def test_a_finished_block_is_not_decoded_again_nor_seen_by_those_before_it() -> None:
    denoiser = model(FROM_START)
    options = DecodingOptions(n_masks=12)
    longer = DecodingOptions(n_masks=40)
    (short,), (long,) = (decode(denoiser, [[1, 2, 3, 4]], each) for each in (options, longer))
    assert long[:12] == short


def test_a_pass_runs_the_block_alone() -> None:
    denoiser = model(FROM_START)
    widths: list[int] = []
    denoiser.model.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: widths.append(inputs[0].shape[1])
    )
    options = DecodingOptions(n_masks=6)
    (row,) = decode_canvases(denoiser, [canvas(denoiser, options, 22, 6, 0)], options)
    # 20 tokens of the prompt are whole blocks; 2 masks beside 2 tokens of it, once more to store; 4 masks.
    assert widths == [20, 4, 4, 4, *[4] * 4]
    assert (row.cost.forward_passes, row.cost.steps, row.cost.tokens) == (8, 6, 48)


# Approximate caches


CACHE_VARIANTS = [
    (cache, shift, changes)
    for cache in ("prefix", "dual")
    for shift, changes in (
        (False, {"steps": 6}),
        (False, {"unmasking": "margin", "temperature": 0.5}),
        (False, {"confidence_threshold": 0.3}),
        (False, {"parallel_factor": 1.0}),
        (False, {"entropy_bound": 1.5}),
        (True, {"unmasking": "entropy", "schedule": "dream"}),
        (True, {"confidence_threshold": 0.3}),
    )
]


@pytest.mark.parametrize(("cache", "shift", "changes"), CACHE_VARIANTS)
def test_rows_with_an_approximate_cache_depend_on_themselves_alone(
    cache: str, shift: bool, changes: dict[str, Any]
) -> None:
    denoiser = model(shift=shift)
    options = DecodingOptions().override({**changes, "cache": cache, "block_length": 4})
    batch = neighbours(denoiser, options)
    together = decode_canvases(denoiser, batch, options, eos_ids=[EOS])
    assert together == [decode_canvases(denoiser, [row], options, eos_ids=[EOS])[0] for row in batch]


# Parallel rules


def test_the_entropy_rule_takes_a_mask_while_those_before_it_sum_to_no_more() -> None:
    entropy = torch.tensor([[0.2713, 0.0086, 2.0794, 0.1195]])
    everywhere = torch.ones(1, 4, dtype=torch.bool)

    def accepted(bound: float, priority: torch.Tensor) -> list[bool]:
        return accepted_by_entropy(everywhere, priority, entropy, bound).tolist()[0]

    assert accepted(0.1, -entropy) == [False, True, False, True]
    assert accepted(0.0, -entropy) == [False, True, False, False]
    assert accepted(9.0, -entropy) == [True] * 4
    assert accepted(0.3, entropy) == [True, False, True, False]  # without the largest, which comes first here
    certain = torch.tensor([[0.0, 0.0, 1.0, 2.0]])
    assert accepted_by_entropy(everywhere, -certain, certain, 0.0).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("rule", [{"parallel_factor": 1e-9}, {"entropy_bound": 0.0}, {"confidence_threshold": 1.0}])
def test_a_rule_that_accepts_nothing_fills_one_mask_a_step(rule: dict[str, float]) -> None:
    options = DecodingOptions(n_masks=8)
    denoiser = model()
    completions = decode(denoiser, [[1, 2, 3]], options.override(rule))
    # The factor rule takes the last two masks together, as its reference does.
    assert denoiser.forward_passes == (7 if "parallel_factor" in rule else 8)
    if "parallel_factor" not in rule:
        assert completions == decode(denoiser, [[1, 2, 3]], options)


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
        decode(denoiser, [[1, 2, 3]], options.override({"editing_threshold": threshold}))
        for threshold in (None, 1.0, 0.5)
    )
    assert unedited == at_1 != below_1


# What a model cannot serve


@pytest.mark.parametrize(
    ("attention", "changes", "message"),
    [
        (FROM_START, {"cache": "prefix"}, "cache must be auto or none .*, not prefix"),
        (FROM_START, {"editing_threshold": 0.5}, "editing_threshold must be none .*, not 0.5"),
        (FROM_START, {"max_post_steps": 1}, "max_post_steps=1 needs editing_threshold"),
        (FROM_START, {"small_block_length": 3}, "small_block_length must be a divisor .* 4, not 3"),
        (FULL_ATTENTION, {"small_block_length": 2}, "small_block_length must be none .*, not 2"),
        (FULL_ATTENTION, {"cache": "dual"}, "cache=dual needs block_length"),
        (FULL_ATTENTION, {"cache": "dual", "block_length": 4, "cfg_scale": 1.0}, "cfg_scale must be 0 .*, not 1"),
        (
            FULL_ATTENTION,
            {"cache": "dual", "block_length": 4, "unmasking": "random"},
            "unmasking must be .*, not random",
        ),
        (FULL_ATTENTION, {"n_masks": 8, "block_length": 9}, "block_length must be at most n_masks=8, not 9"),
    ],
)
def test_options_without_use_are_refused_before_the_first_pass(
    attention: AttentionPattern, changes: dict[str, Any], message: str
) -> None:
    denoiser = model(attention)
    with pytest.raises(OptionError, match=message):
        decode(denoiser, [[1, 2, 3]], DecodingOptions(n_masks=8).override(changes))
    assert denoiser.forward_passes == 0


def test_dreams_first_pass_needs_a_second_one() -> None:
    options = DecodingOptions(n_masks=8, block_length=4, steps=2, cache="dual", schedule="dream")
    with pytest.raises(OptionError, match="one step a block of 4 tokens"):
        decode(model(shift=True), [[1, 2]], options)


def test_an_encoder_keeps_no_keys_and_values() -> None:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    bert = Denoiser(BertForMaskedLM(config).eval(), mask_token_id=MASK, pad_token_id=PAD)
    with pytest.raises(OptionError, match="cache must be none for an encoder"):
        decode(bert, [[1, 2]], DecodingOptions(n_masks=4, block_length=2, cache="dual"))
