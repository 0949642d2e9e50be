"""Decoding over blocks: what a pass runs, parallel rules, what is refused."""

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from mdlm_lm_eval.decoding import decode, decode_canvases
from mdlm_lm_eval.decoding.selection import accepted_by_entropy
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from tests.canvases import FROM_START, MASK, PAD, VOCABULARY, canvas, model


def certain_model(attention: AttentionPattern, **facts: Any) -> Denoiser:
    """Logits so far apart that every confidence is 1 exactly."""
    denoiser = model(attention, **facts)
    with torch.no_grad():
        denoiser.model.lm_head.weight *= 1e4
    return denoiser


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
