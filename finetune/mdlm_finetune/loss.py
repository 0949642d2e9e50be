"""The mask-agnostic (MA) loss."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Divergence = Literal["tv", "kl", "none"]
Weighting = Literal["1/p", "none"]


@dataclass(frozen=True)
class MaskAgnosticLoss:
    """The weighted loss and the terms that it is made of, scalars averaged over examples."""

    total: Tensor
    cross_entropy: Tensor
    consistency: Tensor


def mask_agnostic_loss(
    logits_1: Tensor,
    logits_2: Tensor,
    targets: Tensor,
    example: Tensor,
    mask_ratio: Tensor,
    *,
    alpha: float,
    beta: float,
    divergence: Divergence = "tv",
    weighting: Weighting = "1/p",
) -> MaskAgnosticLoss:
    """alpha L_CE + beta L_TV (section 6.1 of the mask sensitivity paper), averaged over the examples of a batch.

    `logits_1` and `logits_2` [N, V] are two views' predictions at the N masked answer positions of the whole batch,
    `targets` [N] the tokens there and `example` [N] whose they are: 0 .. B - 1. `mask_ratio` [B] is each example's p.

    With n_m the masked answer tokens of one example, its terms are
    L_CE = -1 / (2 p n_m) sum over views and positions of log p(target), and
    L_TV = p / n_m sum over positions of |p_1 - p_2|_1 (the L1 distance, without the half of total variation).
    `divergence` "kl" puts the symmetric (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2 in its place, "none" zero.
    `weighting` "none" drops 1 / p and p. Raises ValueError where an example has no masked answer token.
    """
    n_examples = mask_ratio.shape[0]
    n_masked = torch.bincount(example, minlength=n_examples)  # [B]
    if bool((n_masked == 0).any()):
        raise ValueError("an example has no masked answer token, so that its loss is undefined")
    # Half precision would lose small differences between two distributions over a large vocabulary.
    log_p_1, log_p_2 = (
        F.log_softmax(v if v.dtype == torch.float64 else v.float(), dim=-1) for v in (logits_1, logits_2)
    )
    ratio = mask_ratio.to(log_p_1.dtype) if weighting == "1/p" else torch.ones_like(mask_ratio, dtype=log_p_1.dtype)
    share = 1.0 / (n_examples * n_masked[example]).to(log_p_1.dtype)  # [N]: a mean over positions, then over examples
    at_target = log_p_1.gather(1, targets[:, None]) + log_p_2.gather(1, targets[:, None])  # [N, 1]
    cross_entropy = -(at_target.squeeze(1) * share / (2.0 * ratio[example])).sum()
    if divergence == "none":
        consistency = torch.zeros_like(cross_entropy)
    else:
        if divergence == "tv":
            distance = (log_p_1.exp() - log_p_2.exp()).abs().sum(-1)  # [N]
        else:
            distance = ((log_p_1.exp() - log_p_2.exp()) * (log_p_1 - log_p_2)).sum(-1) / 2.0
        consistency = (distance * share * ratio[example]).sum()
    return MaskAgnosticLoss(alpha * cross_entropy + beta * consistency, cross_entropy, consistency)
