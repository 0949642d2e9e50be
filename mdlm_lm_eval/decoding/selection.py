"""The masks that a denoising step fills: the schedule's number of them, and all that a parallel rule accepts."""

import functools

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.sampler import View


def select(
    view: View, *, threshold: float | None = None, factor: float | None = None, entropy_bound: float | None = None
) -> Tensor:
    """Returns the masks that are filled, [R, C] bool.

    Filled are the `view.fill` masks of highest priority in each row (one if that is None), and the masks that a
    parallel rule accepts: by confidence of at least `threshold`, by Fast-dLLM's `factor`, or by the sum of their
    entropies.
    """
    masks, counts, places = view.masks, view.fill, torch.arange(view.masks.shape[1])
    among = view.priority.where(masks, -torch.inf)
    accepted: list[Tensor] = []
    if threshold is not None:
        accepted.append(sure_enough(view.confidence, threshold, strict=view.strict))
    if factor is not None:
        accepted.append(accepted_by_factor(masks, view.confidence, factor))
    if counts is None and entropy_bound is None:
        place = among.argmax(1, keepdim=True)
        accepted = [each.scatter_(1, place, True) for each in accepted] or [places == place]
    else:
        order = among.argsort(dim=1, descending=True, stable=True)
        if entropy_bound is not None:  # which always accepts the first
            accepted.append(accepted_by_entropy(order, view.entropy, entropy_bound))
        if counts is not None:
            accepted.append(placed(order, places < counts[:, None]))
    return functools.reduce(torch.logical_or, accepted) & masks


def lowest(values: Tensor, among: Tensor, counts: Tensor) -> Tensor:
    """The places `among` [R, C] with the `counts` [R] lowest `values` [R, C] of each row; of equals the leftmost."""
    rank = values.masked_fill(~among, torch.inf).argsort(dim=1, stable=True).argsort(1)
    return among & (rank < counts[:, None])


def sure_enough(confidence: Tensor, threshold: float | None, *, strict: bool) -> Tensor:
    """Whether each `confidence` reaches the threshold, or exceeds it if `strict`; False without a threshold."""
    if threshold is None:
        return torch.zeros_like(confidence, dtype=torch.bool)
    return confidence > threshold if strict else confidence >= threshold


def accepted_by_factor(candidates: Tensor, confidence: Tensor, factor: float) -> Tensor:
    """Fast-dLLM's factor rule [R, C]: by descending confidence, a mask is filled while c_r >= 1 - factor / (r + 1).

    Results at places other than `candidates` have no meaning. The first candidate is always accepted. If only the last
    one fails, the reference accepts it, too: its search ends at the same index whether the last fails or none does. So
    of two masks, both are always filled.
    """
    ordered, order = confidence.where(candidates, -torch.inf).sort(dim=1, descending=True, stable=True)
    limits = 1 - factor / (torch.arange(candidates.shape[1]) + 2.0)
    limits[[0, -1]] = -torch.inf
    passes = ordered >= limits
    passes[:, :-1].logical_or_(ordered[:, 1:] == -torch.inf)  # the last candidate, and places that are none
    return placed(order, passes.cummin(1).values)


def accepted_by_entropy(order: Tensor, entropy: Tensor, bound: float) -> Tensor:
    """The entropy-bounded sampler's rule [R, C] (Ben-Hamu et al. 2025, arXiv 2505.24857).

    In the `order` [R, C] of descending priority, masks are filled while their entropies without the largest of them sum
    to at most `bound`, which bounds how far their joint distribution is from the product of their own. The first mask
    is always accepted. Results at places that are no masks, which are last in the order, have no meaning.
    """
    ordered = entropy.gather(1, order)
    accepted = ordered.cumsum(1) - ordered.cummax(1).values <= bound
    return placed(order, accepted)


def placed(order: Tensor, values: Tensor) -> Tensor:
    """Puts `values` [R, C], which are in an `order` [R, C] of places, back at these places."""
    return torch.empty_like(values).scatter_(1, order, values)
