"""Schedules: how many masks each denoising step of a block fills."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

_DREAM_EPSILON = 1e-3
_MASKGIT: dict[str, Callable[[float], float]] = {
    "maskgit_linear": lambda r: 1 - r,
    "maskgit_cosine": lambda r: math.cos(math.pi * r * 0.5),
    "maskgit_pow2": lambda r: 1 - r**2,
}


def unmask_counts(n_masks: int, steps: int, schedule: str) -> list[int]:
    """The number of masks that each of `steps` steps fills; they sum to `n_masks`.

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
    if schedule in _MASKGIT:
        lefts = [math.floor(n_masks * max(_MASKGIT[schedule]((i + 1) / steps), 1e-6)) for i in range(steps)]
        return [before - after for before, after in itertools.pairwise([n_masks, *lefts])]
    if schedule in ("linear", "llada2"):
        share, rest = divmod(n_masks, steps)
        return [share + (step < rest) for step in range(steps)]
    if schedule == "dream":
        return _dream_counts(n_masks, _dream_timesteps(steps))
    if schedule == "bd3lm":
        times = (torch.arange(steps, -1, -1, dtype=torch.float64) / steps).float()
        times = 1 - (1 - times)  # not the identity in float32, where exact arithmetic gives other counts
        return _counts_between(n_masks, times, lambda left, kept: min(left, round(left * (1 - float(kept)))))
    counts: list[int] = []
    left = n_masks
    for step in range(steps - 1):
        kept = math.floor(n_masks * math.cos(math.pi / 2 * (step + 1) / steps))
        counts.append(min(max(1, left - kept), left - (steps - 1 - step)))
        left -= counts[-1]
    return [*counts, left]


def unmask_counts_after_one(n_masks: int, steps: int, schedule: str) -> list[int]:
    """The same if the first step always fills one mask, for at least two masks and steps."""
    if schedule == "dream":
        return [1, *_dream_counts(n_masks - 1, _dream_timesteps(steps)[1:])]
    return [1, *unmask_counts(n_masks - 1, steps - 1, schedule)]


def _dream_timesteps(steps: int) -> Tensor:
    return torch.linspace(1, _DREAM_EPSILON, steps + 1)  # float32, as the reference rounds


def _dream_counts(n_masks: int, timesteps: Tensor) -> list[int]:
    return _counts_between(n_masks, timesteps, lambda left, kept: int(left * (1 - kept)))


def _counts_between(n_masks: int, timesteps: Tensor, count: Callable[[int, Tensor], int]) -> list[int]:
    """The masks that each step fills: `count(masks left, t[i+1] / t[i])`, and in the last step all that are left."""
    counts: list[int] = []
    left = n_masks
    for now, then in itertools.pairwise(timesteps[:-1]):
        counts.append(count(left, then / now))
        left -= counts[-1]
    return [*counts, left]
