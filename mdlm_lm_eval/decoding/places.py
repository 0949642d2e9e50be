"""The places of a pass whose logits are computed, and how values at them are put back into their windows."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import iota


class Places:
    """The N `wanted` places, in flat order, of R windows with P places each ([R, P] bool).

    On a GPU, N is `n_wanted`, the most places that can be wanted, so that nothing waits for their number; None asks for
    all places.
    at: [N], their flat numbers; None for all in order.
    row, offset: [N], the row and the place in it.
    inside: [N] bool, which of them were wanted; None if all were.
    """

    def __init__(self, wanted: Tensor, n_wanted: int | None, *, on_gpu: bool) -> None:
        self.wanted = wanted
        self._at: Tensor | None = None  # R * P at places that were not wanted
        self.at: Tensor | None = None
        if not on_gpu:
            self._at = self.at = torch.from_numpy(np.flatnonzero(wanted.numpy()))
        elif n_wanted is not None:
            numel = wanted.numel()
            self._at = torch.nonzero_static(wanted.flatten(), size=n_wanted, fill_value=numel).squeeze(1)
            self.at = self._at.clamp(max=numel - 1)

    @functools.cached_property
    def row(self) -> Tensor:
        """[N], the row of each place."""
        if self.at is None:
            return _all_places(*self.wanted.shape, self.wanted.device)[0]
        return self.at // self.wanted.shape[1]

    @functools.cached_property
    def offset(self) -> Tensor:
        """[N], each place's number in its row."""
        if self.at is None:
            return _all_places(*self.wanted.shape, self.wanted.device)[1]
        return self.at % self.wanted.shape[1]

    @functools.cached_property
    def inside(self) -> Any:
        """[N] bool, the places that were wanted; None if all were."""
        return None if self._at is None or self._at is self.at else self._at < self.wanted.numel()

    def outputs(self, outputs: Tensor | None) -> Tensor | None:
        """The flat numbers [N] of the model's outputs at the places; None for all in order.

        `outputs` [R, P] are those of all places; None if they have the places' own numbers.
        """
        if outputs is None:
            return self.at
        return outputs.flatten() if self.at is None else outputs.flatten()[self.at]

    def spread(self, values: Tensor) -> Tensor:
        """Values [N] of the places, put into windows [R, P]; zeros elsewhere."""
        if self._at is not None:
            values = values.new_zeros(self.wanted.numel() + 1).scatter_(0, self._at, values)[:-1]
        return values.view(self.wanted.shape)


@functools.lru_cache(maxsize=64)
def _all_places(n_rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The row and the offset [R * W] of all places of flattened windows."""
    every = iota(n_rows * width, device)
    return every // width, every % width
