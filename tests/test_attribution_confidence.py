"""Confidence and entropy at the answer mask."""

import math
from typing import Literal

import pytest
import torch

from mdlm_lm_eval.analyses.confidence import confidence_and_entropy, predict
from mdlm_lm_eval.analyses.prompts import Prompt
from mdlm_lm_eval.batching import Batches
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.canvases import decode_canvases
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.conftest import tiny_model

MASK = 2


def test_known_distributions_without_the_mask_token() -> None:
    even = torch.zeros(5)
    even[MASK] = 50.0  # the likeliest of all, and yet out of the question
    certain = torch.tensor([0.0, 1e4, 0.0, 0.0, 0.0])
    one_to_three = torch.tensor([0.0, -torch.inf, 0.0, math.log(3.0), -torch.inf])
    logits = torch.stack([even, certain, one_to_three])
    untouched = logits.clone()
    tokens, confidence, entropy = confidence_and_entropy(logits, MASK)
    assert tokens[1:].tolist() == [1, 3]
    assert confidence.tolist() == pytest.approx([0.25, 1.0, 0.75])
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0, math.log(4) - 0.75 * math.log(3)], abs=1e-6)
    assert torch.equal(logits, untouched)


def test_half_precision_logits_are_summed_in_single() -> None:
    logits = torch.zeros(1, 100_001, dtype=torch.bfloat16)
    _, confidence, entropy = confidence_and_entropy(logits, MASK)
    assert confidence.item() == pytest.approx(1e-5, rel=1e-4)
    assert entropy.item() == pytest.approx(math.log(100_000), rel=1e-4)


@pytest.mark.parametrize("shift", [False, True])
def test_predictions_are_those_of_the_model_in_any_batch(shift: bool) -> None:
    model = tiny_model().double()
    denoiser = Denoiser(model, mask_token_id=MASK, pad_token_id=0, shift=shift)
    prompts = []
    for length, n_masks in ((12, 1), (7, 9)):
        ids = [n % 250 + 3 for n in range(length)] + [MASK] * n_masks
        prompts.append(Prompt(ids, length, list(range(length, len(ids))), list(range(length)), [], "A", length))
    predictions = predict(denoiser, prompts, Batches("2", 2))
    for prompt, prediction in zip(prompts, predictions, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt.token_ids])).logits[0, prompt.answer_at - shift]
        allowed = [n for n in range(len(logits)) if n != MASK]
        probabilities = torch.softmax(logits[allowed], dim=0)
        assert prediction.token_id == allowed[int(probabilities.argmax())]
        assert prediction.confidence == pytest.approx(float(probabilities.max()), rel=1e-9)
        assert prediction.entropy == pytest.approx(float(-(probabilities * probabilities.log()).sum()), rel=1e-9)


@pytest.mark.parametrize("blocks_from", ["row_start", "prompt_end"])
def test_predictions_of_block_diffusion_are_what_decoding_writes_first(
    blocks_from: Literal["row_start", "prompt_end"],
) -> None:
    attention = AttentionPattern(4, blocks_from)
    denoiser = Denoiser(tiny_model().double(), mask_token_id=MASK, pad_token_id=0, attention=attention)
    options = DecodingOptions(n_masks=6, steps_per_block=1)
    prompts, canvases = [], []
    for length in (9, 14):
        ids = [n % 250 + 3 for n in range(length)]
        canvas, _ = build_canvas(ids, options, mask_token_id=MASK, max_length=256, attention=attention)
        slots = list(canvas.slots)
        prompts.append(Prompt(list(canvas.token_ids), slots[0], slots, list(range(length)), [], "A", length))
        canvases.append(canvas)
    predictions = predict(denoiser, prompts, Batches("2", 2))
    written = decode_canvases(denoiser, canvases, options)
    assert [prediction.token_id for prediction in predictions] == [answer.token_ids[0] for answer in written]
