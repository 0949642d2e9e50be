"""Which candidates a denoising step fills: the schedule's number of them, and all that a parallel rule accepts."""

import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import iota
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
) -> tuple[Tensor, Tensor | None]:
    """Where [R, C] a mask is filled, of `candidates` [R, C] bool in R rows, and each row's highest priority [R].

    The `counts` [R] of highest `priority` [R, C] in each row, and those that the options' parallel rule accepts by
    `confidence` and `entropy` [R, C]. Without `counts` it is one each; with them the highest priority is not told.
    `strict`: whether what equals `confidence_threshold` is not accepted.
    """
    among, best = priority.where(candidates, -torch.inf), None
    if counts is None:
        best, place = among.max(1)
        chosen = iota(among.shape[1], among.device) == place[:, None]
    else:
        chosen = torch.argsort(among, dim=1, descending=True, stable=True).argsort(1) < counts[:, None]
    # With `kl_threshold`, `klass.choose` says who is sure.
    if options.confidence_threshold is not None and options.kl_threshold is None:
        chosen = chosen | sure_enough(confidence, options.confidence_threshold, strict=strict)
    if options.parallel_factor is not None:
        chosen = chosen | accepted_by_factor(candidates, confidence, options.parallel_factor)
    if options.entropy_bound is not None:
        chosen = chosen | accepted_by_entropy(candidates, priority, entropy, options.entropy_bound)
    return chosen & candidates, best


def sure_enough(confidence: Tensor, threshold: float | None, *, strict: bool) -> Tensor:
    """Where `confidence` reaches the threshold, or exceeds it where `strict`; nowhere without one."""
    if threshold is None:
        return torch.zeros_like(confidence, dtype=torch.bool)
    return confidence > threshold if strict else confidence >= threshold


def accepted_by_factor(candidates: Tensor, confidence: Tensor, factor: float) -> Tensor:
    """Fast-dLLM's factor rule [R, C]: by descending confidence, a mask is filled while c_r >= 1 - factor / (r + 1).

    The first is always in it. Where only the last candidate fails, the reference takes it too: its search ends at the
    same index whether the last fails or none does (so of two masks both are always filled).
    """
    ordered, order = confidence.masked_fill(~candidates, -torch.inf).sort(dim=1, descending=True, stable=True)
    place = iota(candidates.shape[1], candidates.device) + 1  # [C], r
    passes = ordered >= 1 - factor / (place + 1)
    passes[:, 0] = True
    run = passes.long().cumprod(1).sum(1)  # [R]
    n = candidates.sum(1)
    run = torch.where(run == n - 1, n, run)
    return torch.zeros_like(candidates).scatter(1, order, place <= run[:, None])


def accepted_by_entropy(candidates: Tensor, priority: Tensor, entropy: Tensor, bound: float) -> Tensor:
    """The entropy-bounded sampler's rule [R, C] (Ben-Hamu et al. 2025, arXiv 2505.24857).

    By descending `priority`, masks are filled while their entropies without the largest of them sum to at most `bound`,
    which bounds how far their joint distribution is from the product of their own. The first is always among them.
    """
    order = priority.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ordered = entropy.masked_fill(~candidates, 0.0).gather(1, order)
    accepted = ordered.cumsum(1) - ordered.cummax(1).values <= bound
    accepted[:, 0] = True  # whatever rounding makes of 0
    return torch.zeros_like(candidates).scatter(1, order, accepted) & candidates
