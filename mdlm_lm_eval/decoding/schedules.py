"""Schedules: how many masks each denoising step of a block unmasks."""

import math

import torch

_DREAM_EPSILON = 1e-3


def unmask_counts(n_masks: int, steps: int, schedule: str) -> list[int]:
    """Numbers of tokens that the `steps` steps unmask; they sum to `n_masks`.

    `linear`: equal shares, the remainder to the first steps (LLaDA's `get_num_transfer_tokens`). `dream`: timesteps
    linspace(1, eps, steps + 1); step i unmasks int(left * (1 - t[i+1] / t[i])), the last one all that are left (Dream's
    `diffusion_generate`). `cosine`: cos(pi/2 * i/steps) of the tokens are left after step i, at least one a step
    (MaskGIT, section 3.2). `bd3lm`: step i unmasks round(left * (1 - t[i+1] / t[i])), t = 1 - i/steps in float32 as the
    reference rounds (A2D's BD3LM sampler in dllm); steps that unmask nothing are at its end or among them.
    """
    if schedule == "bd3lm":
        return _bd3lm_counts(n_masks, steps)
    if schedule == "linear":
        share, rest = divmod(n_masks, steps)
        return [share + (step < rest) for step in range(steps)]
    counts: list[int] = []
    left = n_masks
    timesteps = torch.linspace(1, _DREAM_EPSILON, steps + 1)  # float32, as the reference rounds
    for step in range(steps - 1):
        if schedule == "dream":
            count = int(left * (1 - timesteps[step + 1] / timesteps[step]))
        else:
            kept = math.floor(n_masks * math.cos(math.pi / 2 * (step + 1) / steps))
            count = min(max(1, left - kept), left - (steps - 1 - step))
        counts.append(count)
        left -= count
    return [*counts, left]


def _bd3lm_counts(n_masks: int, steps: int) -> list[int]:
    times = (torch.arange(steps, -1, -1, dtype=torch.float64) / steps).float()
    times = 1 - (1 - times)  # not the identity in float32, where exact arithmetic gives other counts
    counts: list[int] = []
    left = n_masks
    for now, then in zip(times[:-1], times[1:], strict=True):
        counts.append(min(left, round(left * (1 - float(then / now)))))
        left -= counts[-1]
    return counts
