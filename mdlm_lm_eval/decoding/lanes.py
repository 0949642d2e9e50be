"""Lanes: rows that run together. When a row leaves, another canvas takes its lane."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.rows import Row
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows

Numbers = npt.NDArray[Any]
_EMPTY = {"token": 0, "slot": -1, "block": -2, "order": np.float32(0.0), "in_prompt": False}


class Lanes:
    """L lanes with their rows and the canvases of these, on the host; the first dimension of all arrays is the lane.

    rows: the row in each lane, None if it is empty.
    cache: keys and values of all lanes, under guidance followed by those of the unconditional canvases.
    state: tensors [L, ...] that readers keep between passes, which begin as `fresh` [1, ...] for each row.
    columns: [L, T] each, a column's token, the number of its slot (-1 elsewhere) and of the slot's block (-2
        elsewhere), a number in [0, 1) for rules that draw an order, and whether guidance masks it.
    """

    def __init__(self, batch: Batch, n: int, fresh: Mapping[str, Tensor]) -> None:
        self.batch, self.fresh = batch, fresh
        self.rows: list[Row | None] = [None] * n
        self.state = {name: each.expand(n, *each.shape[1:]).clone() for name, each in fresh.items()}
        self.cache: CanvasCache | None = None
        if batch.way.cache.remembers:
            n_layers = batch.denoiser.model.config.num_hidden_layers
            self.cache = CanvasCache(n_layers, batch.n_columns, 2 * n if batch.is_guided else n)
        self.columns: dict[str, Numbers] = {
            name: np.full((n, batch.n_columns), value) for name, value in _EMPTY.items()
        }

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> Numbers:
        """[L, T]."""
        return self.columns["token"]

    @property
    def free(self) -> list[int]:
        """The lanes without a row."""
        return [lane for lane, row in enumerate(self.rows) if row is None]

    def begin(self, lanes: Sequence[int], rows: Sequence[Row]) -> None:
        """Writes rows as they begin, with their shared prefixes. A canvas's seed draws its random order."""
        for lane, row in zip(lanes, rows, strict=True):
            canvas, slots = row.canvas, list(row.canvas.slots)
            self.rows[lane], row.lane = row, lane
            for name, value in _EMPTY.items():
                self.columns[name][lane] = value
            self.tokens[lane] = self.batch.denoiser.pad_token_id
            self.tokens[lane, : len(canvas.token_ids)] = canvas.token_ids
            self.columns["in_prompt"][lane, : canvas.prompt_length] = True
            self.columns["in_prompt"][lane, slots] = False
            self.columns["slot"][lane, slots] = np.arange(len(slots))
            for number, block in enumerate(row.layout.blocks):
                self.columns["block"][lane, list(block.slots)] = number
            generator = torch.Generator().manual_seed(canvas.seed)
            self.columns["order"][lane, slots] = torch.rand(len(slots), generator=generator).numpy()
        self._reset(lanes)
        if self.cache is not None and self.batch.shares_prefixes:
            begin_rows(self.cache, [row.canvas.prefix for row in rows], lanes)

    def take(self, lanes: Sequence[int], others: "Lanes", rows: Sequence[Row]) -> None:
        """Takes over rows from other lanes, with the keys and values of those whose prompts have been run."""
        pairs = list(zip(lanes, rows, strict=True))
        if has_run := [(lane, row.lane) for lane, row in pairs if row.cost.forward_passes > 0]:
            assert self.cache is not None
            assert others.cache is not None
            own, theirs = zip(*has_run, strict=True)
            self.cache.take(self.in_cache(own), others.cache, others.in_cache(theirs))
        for lane, row in pairs:
            for name, of_lanes in self.columns.items():
                of_lanes[lane] = others.columns[name][row.lane]
            others.rows[row.lane] = None
            self.rows[lane], row.lane = row, lane
        self._reset(lanes)

    def _reset(self, lanes: Sequence[int]) -> None:
        for name, value in self.fresh.items():
            index = torch.tensor(lanes, dtype=torch.long)
            self.state[name][to_device(index, value.device)] = value

    def keep(self, lanes: Sequence[int]) -> None:
        """Drops all other lanes."""
        if self.cache is not None:
            self.cache.keep(self.in_cache(lanes))
        index = torch.tensor(lanes, dtype=torch.long)
        self.state = {name: each[to_device(index, each.device)] for name, each in self.state.items()}
        self.columns = {name: each[list(lanes)] for name, each in self.columns.items()}
        self.rows = [self.rows[lane] for lane in lanes]
        for lane, row in enumerate(self.rows):
            if row is not None:
                row.lane = lane

    def in_cache(self, lanes: Sequence[int]) -> Tensor:
        """The rows of lanes in the cache, on the device; under guidance followed by the unconditional ones'."""
        own = torch.tensor(lanes, dtype=torch.long)
        own = torch.cat([own, own + len(self)]) if self.batch.is_guided else own
        return to_device(own, self.batch.device)
