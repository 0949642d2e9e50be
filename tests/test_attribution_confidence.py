"""Confidence and entropy at the answer mask."""

import math
from typing import Literal

import pytest
import torch

from mdlm_lm_eval.analyses.confidence import confidence_and_entropy, predict
from mdlm_lm_eval.analyses.inputs import Prompt
from mdlm_lm_eval.decoding import decode_canvases
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
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
    tokens, confidence, entropy = confidence_and_entropy(logits, MASK)
    assert tokens[1:].tolist() == [1, 3]
    assert confidence.tolist() == pytest.approx([0.25, 1.0, 0.75])
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0, math.log(4) - 0.75 * math.log(3)], abs=1e-6)
    assert logits[0, MASK] == 50.0
    # Half precision is summed in single.
    _, confidence, entropy = confidence_and_entropy(torch.zeros(1, 100_001, dtype=torch.bfloat16), MASK)
    assert (confidence.item(), entropy.item()) == pytest.approx((1e-5, math.log(100_000)), rel=1e-4)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("blocks_from", [None, "row_start", "prompt_end"])
def test_predictions_are_what_decoding_writes_first(
    blocks_from: Literal["row_start", "prompt_end"] | None, shift: bool
) -> None:
    attention = FULL_ATTENTION if blocks_from is None else AttentionPattern(4, blocks_from)
    model = tiny_model().double()
    denoiser = Denoiser(model, mask_token_id=MASK, pad_token_id=0, attention=attention, shift=shift)
    options = DecodingOptions(n_masks=6, steps_per_block=1)
    prompts, canvases = [], []
    for length in (9, 14):
        ids = [n % 250 + 3 for n in range(length)]
        canvas, _ = build_canvas(ids, options, mask_token_id=MASK, max_length=256, attention=attention)
        slots = list(canvas.slots)
        prompts.append(Prompt(list(canvas.token_ids), slots[0], slots, list(range(length)), [], "A", length))
        canvases.append(canvas)
    predictions = predict(denoiser, prompts)
    assert [token for token, *_ in predictions] == [
        answer.token_ids[0] for answer in decode_canvases(denoiser, canvases, options)
    ]
    for prompt, (token, confidence, entropy) in zip(prompts, predictions, strict=True):
        if attention is FULL_ATTENTION:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt.token_ids])).logits[0, prompt.answer_at - shift]
            p = torch.softmax(torch.cat([logits[:MASK], logits[MASK + 1 :]]), dim=0)
            assert (confidence, entropy) == pytest.approx((float(p.max()), float(-(p * p.log()).sum())), rel=1e-9)
            assert token not in (MASK,)
