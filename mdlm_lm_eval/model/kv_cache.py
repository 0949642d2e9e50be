"""Keys and values that are remembered between passes over parts of a canvas."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mdlm_lm_eval.model.compiled import Graphs


@dataclass
class NextPass:
    """The next pass: it runs `columns` [B, W] of `rows` [B] (None for all), and sees the first `n_seen` columns.

    n_seen: None if it sees only the columns that it runs.
    """

    columns: Tensor
    n_seen: int | None
    rows: Tensor | None


class CanvasLayer(CacheLayerMixin):
    """One layer's keys and values [B, H, T, D] of every column of a batch of canvases.

    transformers' DynamicLayer only appends. A block that runs again and again would have to be cut off after each pass,
    at one length for all rows, and every pass would copy the whole cache. Here a pass overwrites the columns that it
    runs: rows may be at different columns, and nothing else is copied.
    """

    def __init__(self, width: int, n_rows: int, now: NextPass) -> None:
        super().__init__()
        self.n_rows, self.width, self.now = n_rows, width, now

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Fills the cache with zeros: columns that have not run yet are masked, and masked numbers must be finite."""
        _, heads, _, size = key_states.shape
        self.keys = key_states.new_zeros(self.n_rows, heads, self.width, size)
        self.values = value_states.new_zeros(self.n_rows, heads, self.width, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes the window's keys and values [B, H, W, D], and returns all that the window sees."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        device, n_seen = self.keys.device, self.now.n_seen
        columns = self.now.columns.to(device)  # layers may lie on several devices
        rows = None if self.now.rows is None else self.now.rows.to(device)
        every = torch.arange(len(columns), device=device) if rows is None else rows
        for remembered, new in ((self.keys, key_states), (self.values, value_states)):
            remembered[every[:, None], :, columns] = new.transpose(1, 2)
        if n_seen is None:
            return key_states, value_states
        run = slice(None) if rows is None else rows
        return self.keys[run, :, :n_seen], self.values[run, :, :n_seen]

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows."""
        if self.is_initialized:
            rows = rows.to(self.keys.device)
            self.keys, self.values = self.keys[rows], self.values[rows]
        self.n_rows = len(rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Not used, as every pass has a mask."""
        return self.now.n_seen or 0, 0

    def get_seq_length(self) -> int:
        """Not used, as every pass has positions."""
        return 0

    def get_max_length(self) -> int:
        """The number of columns that it has room for."""
        return self.width


class CanvasCache(Cache):
    """Keys and values of `n_rows` canvases of at most `width` columns, for each of a model's layers.

    `graphs` are CUDA graphs of passes with it.
    """

    def __init__(self, n_layers: int, width: int, n_rows: int) -> None:
        self.now = NextPass(torch.empty(0, 0, dtype=torch.long), 0, None)
        self.canvas_layers = [CanvasLayer(width, n_rows, self.now) for _ in range(n_layers)]
        self.graphs = Graphs()
        super().__init__(layers=list(self.canvas_layers))

    @property
    def n_rows(self) -> int:
        """The number of canvases."""
        return self.canvas_layers[0].n_rows

    def move_to(self, columns: Tensor, n_seen: int | None, rows: Tensor | None = None) -> None:
        """Prepares the next pass; see `NextPass`."""
        self.now.columns, self.now.n_seen, self.now.rows = columns, n_seen, rows

    def take(self, rows: Tensor, other: "CanvasCache", others: Tensor | slice) -> None:
        """Overwrites `rows` [B] with rows `others`, or one for all, of a cache that has run and may be narrower."""
        for layer, its in zip(self.canvas_layers, other.canvas_layers, strict=True):
            of = others if isinstance(others, slice) else others.to(its.keys.device)
            keys, values = its.keys[of], its.values[of]
            if not layer.is_initialized:
                layer.lazy_initialization(keys, values)
            into = rows.to(keys.device)
            layer.keys[into, :, : its.width] = keys
            layer.values[into, :, : its.width] = values

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows."""
        self.graphs = Graphs()
        for layer in self.canvas_layers:
            layer.keep(rows)
