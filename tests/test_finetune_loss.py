"""The mask-agnostic loss against its formulas, by finite differences, and at its limits."""

import math

import pytest
import torch
from torch import Tensor

from mdlm_finetune import mask_agnostic_loss

EXAMPLE = torch.tensor([0, 0, 0, 1, 2, 2])
RATIO = torch.tensor([0.3, 0.8, 0.5], dtype=torch.float64)


def random_views() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 6, 7, generator=generator, dtype=torch.float64)
    return logits[0], logits[1], torch.randint(7, (6,), generator=generator)


def transcribed(logits_1: Tensor, logits_2: Tensor, targets: Tensor) -> tuple[float, float]:
    """L_CE and L_TV by the paper's sums, in Python floats."""

    def softmax(row: list[float]) -> list[float]:
        weights = [math.exp(x) for x in row]
        return [w / sum(weights) for w in weights]

    ce = tv = 0.0
    for b, p in enumerate(RATIO.tolist()):
        positions = [j for j, owner in enumerate(EXAMPLE.tolist()) if owner == b]
        views = [[softmax(logits[j].tolist()) for j in positions] for logits in (logits_1, logits_2)]
        n_m = len(positions)
        ce += sum(-math.log(view[k][int(targets[j])]) for view in views for k, j in enumerate(positions)) / (
            2 * p * n_m
        )
        tv += p / n_m * sum(abs(x - y) for one, two in zip(*views, strict=True) for x, y in zip(one, two, strict=True))
    return ce / len(RATIO), tv / len(RATIO)


def test_terms_are_the_papers_formulas() -> None:
    one, two, targets = random_views()
    loss = mask_agnostic_loss(one, two, targets, EXAMPLE, RATIO, alpha=0.1, beta=10.0)
    ce, tv = transcribed(one, two, targets)
    assert loss.cross_entropy.item() == pytest.approx(ce, rel=1e-12)
    assert loss.consistency.item() == pytest.approx(tv, rel=1e-12)
    assert loss.total.item() == pytest.approx(0.1 * ce + 10.0 * tv, rel=1e-12)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@pytest.mark.parametrize("weighting", ["1/p", "none"])
def test_gradient_by_finite_differences(divergence: str, weighting: str) -> None:
    one, two, targets = random_views()

    def total(a: Tensor, b: Tensor) -> Tensor:
        switches = {"divergence": divergence, "weighting": weighting}
        return mask_agnostic_loss(a, b, targets, EXAMPLE, RATIO, alpha=0.4, beta=2.0, **switches).total  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(total, (one.requires_grad_(), two.requires_grad_()))


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_identical_views_are_consistent_and_views_may_be_swapped(divergence: str) -> None:
    one, two, targets = random_views()
    how = {"alpha": 0.1, "beta": 1.0, "divergence": divergence}
    same, there, back = (
        mask_agnostic_loss(*views, targets, EXAMPLE, RATIO, **how)  # type: ignore[arg-type]
        for views in ((one, one), (one, two), (two, one))
    )
    assert (same.consistency.item(), same.total.item()) == (0.0, pytest.approx(0.1 * same.cross_entropy.item()))
    assert there.total.item() == pytest.approx(back.total.item(), rel=1e-14)


def test_weighting_none_takes_p_out() -> None:
    one, two, targets = random_views()
    plain = mask_agnostic_loss(one, two, targets, EXAMPLE, RATIO, alpha=0.1, beta=1.0, weighting="none")
    at_one = mask_agnostic_loss(one, two, targets, EXAMPLE, torch.ones(3).double(), alpha=0.1, beta=1.0)
    assert plain.total.item() == pytest.approx(at_one.total.item(), rel=1e-14)
    with pytest.raises(ValueError, match="no masked answer token"):
        mask_agnostic_loss(one, two, targets, EXAMPLE, torch.ones(4), alpha=0.1, beta=1.0)
