"""Which candidates a denoising step fills: the schedule's number of them, and all that a parallel rule accepts."""

import functools

import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import iota, to_device
from mdlm_lm_eval.options import DecodingOptions


def select(
    candidates: Tensor,
    priority: Tensor,
    confidence: Tensor,
    entropy: Tensor,
    counts: Tensor | None,
    options: DecodingOptions,
    *,
    strict: bool,
) -> tuple[Tensor, Tensor]:
    """Where [R, C] a mask is filled, of `candidates` [R, C] bool in R rows, and each row's highest priority [R].

    The `counts` [R] of highest `priority` [R, C] in each row, and those that the options' parallel rule accepts by
    `confidence` and `entropy` [R, C]. Without `counts` it is one each.
    `strict`: whether what equals `confidence_threshold` is not accepted.
    """
    among = priority.where(candidates, -torch.inf)
    best: Tensor | None = None
    accepted: Tensor | None = None
    # With `kl_threshold`, `choose_stable` says who is sure.
    if options.confidence_threshold is not None and options.kl_threshold is None:
        accepted = sure_enough(confidence, options.confidence_threshold, strict=strict)
    if options.parallel_factor is not None:
        others, accepted = accepted, accepted_by_factor(candidates, confidence, options.parallel_factor)
        accepted = accepted if others is None else accepted | others
    if counts is not None or options.entropy_bound is not None:
        ordered, order = among.sort(dim=1, descending=True, stable=True)
        best = ordered[:, 0]
    if options.entropy_bound is not None:  # the first is always accepted
        others, accepted = accepted, accepted_by_entropy(order, entropy, options.entropy_bound)
        accepted = accepted if others is None else accepted | others
    if counts is not None:
        is_first = iota(among.shape[1], among.device) < counts[:, None]  # [R, C], by descending priority
        chosen = torch.empty_like(candidates).scatter_(1, order, is_first)
        accepted = chosen if accepted is None else chosen | accepted
    elif best is None:
        of_best, place = among.max(1, keepdim=True)
        best, places = of_best[:, 0], iota(among.shape[1], among.device)
        accepted = places == place if accepted is None else accepted.scatter_(1, place, True)
    assert accepted is not None
    assert best is not None
    return accepted & candidates, best


def sure_enough(confidence: Tensor, threshold: float | None, *, strict: bool) -> Tensor:
    """Where `confidence` reaches the threshold, or exceeds it where `strict`; nowhere without one."""
    if threshold is None:
        return torch.zeros_like(confidence, dtype=torch.bool)
    return confidence > threshold if strict else confidence >= threshold


def accepted_by_factor(candidates: Tensor, confidence: Tensor, factor: float) -> Tensor:
    """Fast-dLLM's factor rule [R, C]: by descending confidence, a mask is filled while c_r >= 1 - factor / (r + 1).

    What it says of other places than `candidates` is to be ignored. The first is always in it. Where only the last
    candidate fails, the reference takes it too: its search ends at the same index whether the last fails or none does
    (so of two masks both are always filled).
    """
    ordered, order = confidence.where(candidates, -torch.inf).sort(dim=1, descending=True, stable=True)
    passes = ordered >= _factor_limits(candidates.shape[1], factor, candidates.device)
    passes[:, :-1].logical_or_(ordered[:, 1:] == -torch.inf)  # the last candidate, and what is none
    return torch.empty_like(candidates).scatter_(1, order, passes.cummin(1).values)


@functools.lru_cache(maxsize=64)
def _factor_limits(n: int, factor: float, device: torch.device) -> Tensor:
    """What the n surest must reach [n]; nothing the first and, if all are candidates, the last."""
    limits = 1 - factor / (torch.arange(n) + 2.0)
    limits[[0, -1]] = -torch.inf
    return to_device(limits, device)


def accepted_by_entropy(order: Tensor, entropy: Tensor, bound: float) -> Tensor:
    """The entropy-bounded sampler's rule [R, C] (Ben-Hamu et al. 2025, arXiv 2505.24857).

    In the `order` [R, C] of descending priority, masks are filled while their entropies without the largest of them sum
    to at most `bound`, which bounds how far their joint distribution is from the product of their own. The first is
    always among them. What it says of other places, which are last in the order, is to be ignored.
    """
    ordered = entropy.gather(1, order)  # of candidates first
    accepted = ordered.cumsum(1) - ordered.cummax(1).values <= bound
    return torch.empty_like(accepted).scatter_(1, order, accepted)
