"""The places of a pass at which the model is asked for logits, and how values at them return to their windows."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import iota


class Places:
    """N of the P places of R windows, those `wanted` [R, P] in flat order.

    On a GPU `n_wanted` says how many there are at most, so that nobody waits for their number; None asks for all.
    inside: [N] bool, which of them are real; None where all are. at: [N], their flat places; None for all of them in
    order. row, offset: [N], where each stands.
    """

    def __init__(self, wanted: Tensor, n_wanted: int | None, *, on_gpu: bool) -> None:
        self.wanted, self._on_gpu = wanted, on_gpu
        self._at: Tensor | None = None  # with the number of places where a place is not real
        self.at: Tensor | None = None
        if not on_gpu:
            self._at = self.at = torch.from_numpy(np.flatnonzero(wanted.numpy()))
        elif n_wanted is not None:
            numel = wanted.numel()
            self._at = torch.nonzero_static(wanted.flatten(), size=n_wanted, fill_value=numel).squeeze(1)
            self.at = self._at.clamp(max=numel - 1)

    @functools.cached_property
    def row(self) -> Tensor:
        """[N]."""
        if self.at is None:
            return _all_places(*self.wanted.shape, self.wanted.device)[0]
        return self.at // self.wanted.shape[1]

    @functools.cached_property
    def offset(self) -> Tensor:
        """[N]."""
        if self.at is None:
            return _all_places(*self.wanted.shape, self.wanted.device)[1]
        return self.at % self.wanted.shape[1]

    @functools.cached_property
    def inside(self) -> Any:
        """[N] bool, None where all are real."""
        return self._at < self.wanted.numel() if self._on_gpu and self._at is not None else None

    def outputs(self, outputs: Tensor | None) -> Tensor | None:
        """Of `outputs` [R, P], flat indices of the model's outputs, those of the N places; None for all in order."""
        if outputs is None:
            return self.at
        return outputs.flatten() if self.at is None else outputs.flatten()[self.at]

    def spread(self, values: Tensor) -> Tensor:
        """Values [N] at their places in the windows [R, P], zeros elsewhere."""
        n_rows, n_places = self.wanted.shape
        if not self._on_gpu:
            return values.new_zeros(n_rows, n_places).masked_scatter_(self.wanted, values)
        if self._at is not None:
            numel = n_rows * n_places
            values = values.new_zeros(numel + 1).scatter_(0, self._at, values)[:numel]
        return values.view(n_rows, n_places)


@functools.lru_cache(maxsize=64)
def _all_places(n_rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and offset [R * W] of all places of flattened windows."""
    every = iota(n_rows * width, device)
    return every // width, every % width
