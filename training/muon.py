"""Muon (https://kellerjordan.github.io/posts/muon) in float32: torch's own multiplies in bfloat16, which takes 30 times
as long on a CPU without bfloat16, and rounds differently on one with it."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)  # torch.optim.Muon's, as all other settings here


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, of which a matrix with equal singular values is the update. For matrices only."""

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates all matrices, those of one shape together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for one in group["params"]:
                by_shape.setdefault(one.shape, []).append(one)
            for (n, m), some in by_shape.items():
                gradients = [cast(Tensor, one.grad) for one in some]
                averages = [self.state[one].setdefault("average", torch.zeros_like(one)) for one in some]
                torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
                updates = orthogonal(torch.stack(torch._foreach_lerp(gradients, averages, group["momentum"])))
                rate = group["lr"] * max(1, n / m) ** 0.5
                torch._foreach_mul_(some, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(some, list(updates), alpha=-rate)


def orthogonal(matrices: Tensor, n_steps: int = 5, least: float = 1e-7) -> Tensor:
    """The matrices [N, R, C] with all singular values near one, by Newton and Schulz's iteration."""
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal(matrices.mT, n_steps, least).mT
    a, b, c = COEFFICIENTS
    found = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=least)
    for _ in range(n_steps):
        squares = found @ found.mT
        found = a * found + (b * squares + c * squares @ squares) @ found
    return found
