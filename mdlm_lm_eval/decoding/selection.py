"""The masks that a denoising step fills: how many, by a schedule; and which, by priority and parallel rules."""

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.sampler import View

_DREAM_EPSILON = 1e-3
_MASKGIT: dict[str, Callable[[float], float]] = {
    "maskgit_linear": lambda r: 1 - r,
    "maskgit_cosine": lambda r: math.cos(math.pi * r * 0.5),
    "maskgit_pow2": lambda r: 1 - r**2,
}


def unmask_counts(n_masks: int, steps: int, schedule: str, *, after_one: bool = False) -> list[int]:
    """The number of masks that each of `steps` steps fills; they sum to `n_masks`.

    With `after_one`, the first step always fills one mask, of at least two; there are at least two steps.

    linear: equal shares, the remainder to the first steps (LLaDA's `get_num_transfer_tokens`).
    llada2: the same, with at most as many steps as tokens are asked for.
    dream: timesteps linspace(1, eps, steps + 1); step i fills int(left * (1 - t[i+1] / t[i])), the last one all that
        are left (Dream's `diffusion_generate`).
    cosine: after step i, cos(pi/2 * i/steps) of the masks are left; at least one per step (MaskGIT, section 3.2).
    bd3lm: timesteps linspace(1, 0, steps + 1); step i fills round(left * (1 - t[i+1] / t[i])) (A2D's BD3LM sampler in
        dllm).
    maskgit_*: after a share r of the steps, floor(n_masks * g(r)) masks are left, with g = 1 - r, cos(pi/2 r) or
        1 - r^2 (arXiv 2508.13148; some steps fill none).
    """
    if schedule == "dream":
        times = torch.linspace(1, _DREAM_EPSILON, steps + 1)[int(after_one) :]  # float32, as the reference rounds
        rest = _counts_between(n_masks - after_one, times, lambda left, kept: int(left * (1 - kept)))
        return [1] * after_one + rest
    if after_one:
        return [1, *unmask_counts(n_masks - 1, steps - 1, schedule)]
    if schedule in _MASKGIT:
        lefts = [math.floor(n_masks * max(_MASKGIT[schedule]((i + 1) / steps), 1e-6)) for i in range(steps)]
        return [before - after for before, after in itertools.pairwise([n_masks, *lefts])]
    if schedule in ("linear", "llada2"):
        share, more = divmod(n_masks, steps)
        return [share + (step < more) for step in range(steps)]
    if schedule == "bd3lm":
        times = (torch.arange(steps, -1, -1, dtype=torch.float64) / steps).float()
        times = 1 - (1 - times)  # not the identity in float32, where exact arithmetic gives other counts
        return _counts_between(n_masks, times, lambda left, kept: min(left, round(left * (1 - float(kept)))))
    counts, left = [], n_masks
    for step in range(steps - 1):
        kept = math.floor(n_masks * math.cos(math.pi / 2 * (step + 1) / steps))
        counts.append(min(max(1, left - kept), left - (steps - 1 - step)))
        left -= counts[-1]
    return [*counts, left]


def _counts_between(n_masks: int, timesteps: Tensor, count: Callable[[int, Tensor], int]) -> list[int]:
    """The masks that each step fills: `count(masks left, t[i+1] / t[i])`, and in the last step all that are left."""
    counts: list[int] = []
    left = n_masks
    for now, then in itertools.pairwise(timesteps[:-1]):
        counts.append(count(left, then / now))
        left -= counts[-1]
    return [*counts, left]


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
