"""Objectives: LLaDA's plain one, and how another is added."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mdlm_finetune import Collator, Example, mask_agnostic_loss
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_finetune.objectives.sft import Sft
from mdlm_finetune.trainer import predictions
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from tests.conftest import tiny_model

EXAMPLES = [Example(id, [10 + id, 20, 30], [40 + id, *range(50, 80)]) for id in range(8)]
COLLATOR = Collator(Sft(), mask_token_id=2, eos_token_id=1, max_length=60)


def test_sft_masks_the_answer_with_probability_t() -> None:
    masked = torch.zeros(len(EXAMPLES))
    expected = torch.zeros(len(EXAMPLES))
    for n in range(300):
        batch = COLLATOR(EXAMPLES, n)
        assert batch.input_ids.shape == (8, 34)
        assert bool((batch.input_ids.flatten()[batch.positions] == 2).all())
        assert bool((batch.positions % 34 >= 3).all()), "the prompt is not masked"
        masked += batch.example.bincount(minlength=8)
        expected += 31 * batch.mask_ratio
    torch.testing.assert_close(masked / 300, expected / 300, atol=0.3, rtol=0.0)
    torch.testing.assert_close(expected / 300, torch.full((8,), 15.5), atol=2.0, rtol=0.0)


def test_sft_loss_is_llada_s() -> None:
    batch = COLLATOR(EXAMPLES, 0)
    logits = torch.randn(len(batch.targets), 100, generator=torch.Generator().manual_seed(0))
    each = F.cross_entropy(logits, batch.targets, reduction="none")
    expected = sum(
        float(loss) / (float(batch.mask_ratio[row]) * 31) / 8
        for loss, row in zip(each, batch.example.tolist(), strict=True)
    )
    assert float(Sft().loss(logits, batch)["loss"]) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_a_mask_teaches_nothing() -> None:
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0)
    none = {name: getattr(COLLATOR(EXAMPLES, 0), name)[:0] for name in ("positions", "targets", "example")}
    empty = replace(COLLATOR(EXAMPLES, 0), **none)
    loss = Sft().loss(predictions(denoiser, empty), empty)["loss"]
    loss.backward()
    assert float(loss) == 0.0
    assert all(float(p.grad.abs().sum()) == 0.0 for p in denoiser.model.parameters() if p.grad is not None)


@pytest.mark.parametrize("changes", [{}, {"divergence": "kl"}, {"weighting": "none"}, {"alpha": 0.3, "beta": 4.0}])
def test_the_mask_agnostic_objective_compares_its_views_by_the_loss_that_it_names(changes: dict[str, Any]) -> None:
    objective = MaskAgnostic(masks_end=8, **changes)
    batch = Collator(objective, mask_token_id=2, eos_token_id=1, max_length=60)(EXAMPLES, 5)
    n = len(batch.targets)
    logits = torch.randn(2 * n, 100, generator=torch.Generator().manual_seed(0))
    weights = {"alpha": 0.1, "beta": 1.0, **changes}
    expected = mask_agnostic_loss(logits[:n], logits[n:], batch.targets, batch.example, batch.mask_ratio, **weights)
    terms = objective.loss(logits, batch)
    assert terms["loss"] == expected.total
    assert (terms["cross_entropy"], terms["consistency"]) == (expected.cross_entropy, expected.consistency)


def test_a_block_diffusion_model_sees_its_blocks() -> None:
    attention = AttentionPattern(4, blocks_from="prompt_end")
    denoiser = Denoiser(tiny_model(), mask_token_id=2, pad_token_id=0, attention=attention)
    batch = COLLATOR(EXAMPLES, 0)
    changed = replace(batch, input_ids=batch.input_ids.clone())
    changed.input_ids[:, 3 + 4 :] = 9  # behind the answer's first block
    in_first = batch.positions % 34 < 3 + 4
    one, other = predictions(denoiser, batch), predictions(denoiser, changed)
    torch.testing.assert_close(one[in_first], other[in_first])
    assert not torch.allclose(one[~in_first], other[~in_first])
