"""Lanes: rows that run together. When a row leaves, the next canvas takes its lane."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.rows import Row
from mdlm_lm_eval.model.devices import bucket, to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows, sort_key_of

Numbers = npt.NDArray[Any]
_EMPTY = {"tokens": 0, "slots": -1, "blocks": -2, "order": 0.0, "prompt": False}


class OfLanes(Protocol):
    """Something that keeps numbers for each lane between passes."""

    def enter(self, lanes: Tensor) -> None:
        """Forgets the rows that were in `lanes` [K], on the host."""

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""


class Lanes:
    """L lanes with their rows and the canvases of these, on the host; the first dimension of all arrays is the lane.

    rows: the row in each lane, None if it is empty.
    cache: keys and values of all lanes, under guidance followed by those of the unconditional canvases.
    tokens: [L, T].
    slots, blocks: [L, T], a slot's number (-1 elsewhere) and its block's (-2 elsewhere).
    order: [L, T] float32 in [0, 1), for rules that draw an order.
    prompt: [L, T] bool, the tokens that guidance masks.
    """

    def __init__(self, batch: Batch, n: int) -> None:
        self.batch, shape = batch, (n, batch.n_columns)
        self.rows: list[Row | None] = [None] * n
        self.cache: CanvasCache | None = None
        if batch.structure.cache.remembers:
            n_layers = batch.denoiser.model.config.num_hidden_layers
            self.cache = CanvasCache(n_layers, batch.n_columns, 2 * n if batch.is_guided else n)
        self.tokens = np.zeros(shape, int)
        self.slots = np.full(shape, -1)
        self.blocks = np.full(shape, -2)
        self.order = np.zeros(shape, np.float32)
        self.prompt = np.zeros(shape, bool)

    def __len__(self) -> int:
        return len(self.rows)

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
                getattr(self, name)[lane] = value
            self.tokens[lane] = self.batch.denoiser.pad_token_id
            self.tokens[lane, : len(canvas.token_ids)] = canvas.token_ids
            self.slots[lane, slots] = np.arange(len(slots))
            for number, block in enumerate(row.layout.blocks):
                self.blocks[lane, list(block.slots)] = number
            self.prompt[lane, : canvas.prompt_length] = True
            self.prompt[lane, slots] = False
            generator = torch.Generator().manual_seed(canvas.seed)
            self.order[lane, slots] = torch.rand(len(slots), generator=generator).numpy()
        if self.cache is not None and self.batch.shares_prefixes:
            begin_rows(self.cache, [row.canvas.prefix for row in rows], lanes)

    def take(self, lanes: Sequence[int], others: "Lanes", rows: Sequence[Row]) -> None:
        """Takes over rows from other lanes, with the keys and values of those whose prompts have been run."""
        has_run = [row.cost.forward_passes > 0 for row in rows]
        if any(has_run):
            assert self.cache is not None
            assert others.cache is not None
            own = self.in_cache(list(itertools.compress(lanes, has_run)))
            theirs = others.in_cache([row.lane for row in itertools.compress(rows, has_run)])
            self.cache.take(own, others.cache, theirs)
        for lane, row in zip(lanes, rows, strict=True):
            for name in _EMPTY:
                getattr(self, name)[lane] = getattr(others, name)[row.lane]
            others.rows[row.lane] = None
            self.rows[lane], row.lane = row, lane

    def keep(self, lanes: Sequence[int]) -> None:
        """Drops all other lanes."""
        if self.cache is not None:
            self.cache.keep(self.in_cache(lanes))
        self.rows = [self.rows[lane] for lane in lanes]
        for name in _EMPTY:
            setattr(self, name, getattr(self, name)[list(lanes)])
        for lane, row in enumerate(self.rows):
            if row is not None:
                row.lane = lane

    def in_cache(self, lanes: Sequence[int]) -> Tensor:
        """The rows of lanes in the cache, on the device; under guidance followed by the unconditional ones'."""
        own = torch.tensor(lanes, dtype=torch.long)
        own = torch.cat([own, own + len(self)]) if self.batch.is_guided else own
        return to_device(own, self.batch.device)


class Queue:
    """The canvases that wait for a lane, in the caller's order; where blocks are stored, most slots first.

    If prompts are run by themselves, `refill` runs those of the next canvases in one pass, while all rows in lanes
    stand still, so that no later row costs a pass over its prompt alone.

    of_lanes: what else belongs to lanes. begun: called after rows have entered lanes. run_prompts: runs a pass over
        the prompts of rows in lanes.
    """

    def __init__(
        self,
        batch: Batch,
        lanes: Lanes,
        of_lanes: Sequence[OfLanes],
        begun: Callable[[Lanes, Sequence[Row]], None],
        run_prompts: Callable[[Lanes, Sequence[Row]], None],
    ) -> None:
        self.batch, self.lanes, self.of_lanes = batch, lanes, of_lanes
        self._begun, self._run_prompts = begun, run_prompts
        structure, canvases = batch.structure, batch.canvases
        order: Sequence[int] = range(len(canvases))
        if structure.cache.stores_blocks:
            # Canvases with the same prefix follow each other, those with the most masks first.
            order = sorted(order, key=lambda n: sort_key_of(canvases[n].prefix, len(canvases[n].slots)))
        self._waiting = (Row.of(n, canvases[n], batch.layouts[n], structure) for n in order)
        self._ahead: Lanes | None = None
        self._ready: list[Row] = []  # rows of `_ahead`
        if structure.cache.stores_blocks and not structure.predicts_next:
            n = len(lanes)
            self._ahead = Lanes(batch, max(1, n // 2) if batch.on_gpu else n // 2 + 1)

    def fill(self) -> None:
        """Fills empty lanes with the first rows."""
        self._enter(self.lanes.free, self._next(len(self.lanes.free)))

    def refill(self) -> None:
        """Fills empty lanes with the next rows, whose prompts it may run first; drops lanes without a row."""
        free = self.lanes.free
        while free:
            rows = self._next(len(free)) if self._ahead is None else self._next_ready(self._ahead, len(free))
            if not rows:
                self._drop(len(self.lanes) - len(free))
                return
            if self._ahead is None:
                self._enter(free, rows)
            else:
                self.lanes.take(free[: len(rows)], self._ahead, rows)
                self._begin_others(free[: len(rows)])
            free = free[len(rows) :]

    def _next(self, n: int) -> list[Row]:
        return list(itertools.islice(self._waiting, n))

    def _next_ready(self, ahead: Lanes, n: int) -> list[Row]:
        """The next rows, at most `n`. If none is ready, the prompts of the next half as many rows as lanes run now."""
        if not self._ready:
            self._ready = self._next(len(ahead))
            ahead.begin(range(len(self._ready)), self._ready)
            self._begun(ahead, self._ready)
            if prompts := [row for row in self._ready if row.is_wide]:
                self._run_prompts(ahead, prompts)
        rows, self._ready = self._ready[:n], self._ready[n:]
        return rows

    def _enter(self, free: Sequence[int], rows: Sequence[Row]) -> None:
        taken = free[: len(rows)]
        self.lanes.begin(taken, rows)
        self._begun(self.lanes, rows)
        self._begin_others(taken)

    def _begin_others(self, taken: Sequence[int]) -> None:
        for each in self.of_lanes:
            each.enter(torch.tensor(taken, dtype=torch.long))

    def _drop(self, n_rows: int) -> None:
        """Drops empty lanes, on a GPU only some of them, so that graphs meet few numbers of rows."""
        size = min(len(self.lanes), bucket(n_rows, self.batch.device)) if n_rows else 0
        if size == len(self.lanes):
            return
        kept = [lane for lane, row in enumerate(self.lanes.rows) if row is not None]
        kept += self.lanes.free[: size - len(kept)]
        self.lanes.keep(kept)
        for each in self.of_lanes:
            each.keep(torch.tensor(kept, dtype=torch.long))
