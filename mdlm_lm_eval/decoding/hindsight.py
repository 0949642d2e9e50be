"""How likely a filled token would be if its own position were masked: a shadow of the block follows the canvas.

A mask in the shadow has the position of its column. It sees all other columns of the canvas, and the shadow; the canvas
sees the canvas alone, so that one pass gives both (arXiv 2507.18578).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import slices_of
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.passes import PlaceLogits
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.windows import Window, as_tensor
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import iota, to_device


@dataclass(frozen=True)
class Shadow:
    """`columns`, `tokens` and `is_there` [R, B] of the block's positions, on R canvases of T columns."""

    columns: Tensor
    tokens: Tensor
    is_there: Tensor
    n_columns: int

    @classmethod
    def of(cls, window: Window, length: int) -> "Shadow":
        """The shadow of each row's block, of at most `length` slots."""
        lanes = window.lanes[:, 0]
        tokens, slots, blocks = (
            torch.from_numpy(each[lanes]) for each in (window.of.tokens, window.of.slots, window.of.blocks)
        )
        slot = torch.from_numpy(window.before) + torch.arange(length)  # [R, B]
        columns = (slots[:, None] == slot[..., None]).long().argmax(2)
        is_there = blocks.gather(1, columns) == torch.from_numpy(window.numbers)
        n_columns = tokens.shape[1]
        columns = columns.where(is_there, n_columns - 1)
        return cls(columns, tokens.gather(1, columns), is_there, n_columns)

    def on(self, device: torch.device) -> "Shadow":
        """The shadow on a device; nothing waits for the copy."""
        columns, tokens, is_there = (to_device(each, device) for each in (self.columns, self.tokens, self.is_there))
        return Shadow(columns, tokens, is_there, self.n_columns)

    def wanted(self, mask_token_id: int) -> Tensor:
        """[R, B] bool, the tokens whose probability is needed: all that are no masks."""
        return (self.tokens != mask_token_id) & self.is_there

    def logits(self, denoiser: Denoiser, columns: Tensor, tokens: Tensor, is_real: Tensor, positions: Tensor) -> Tensor:
        """Logits [N, V] at `positions` [N] of the flattened windows with `tokens` [R, W] and the shadow after them."""
        itself = columns[:, None] == self.columns[..., None]  # [R, B, W]
        real, there = is_real[:, None], self.is_there[:, None]  # [R, 1, W], [R, 1, B]
        canvas = torch.cat([real, torch.zeros_like(there)], 2).expand(-1, columns.shape[1], -1)  # [R, W, W + B]
        shadow = torch.cat([real & ~itself, there.expand(-1, self.columns.shape[1], -1)], 2)  # [R, B, W + B]
        sees = torch.cat([canvas, shadow], 1)
        ids = torch.cat([tokens, torch.full_like(self.columns, denoiser.mask_token_id)], 1)
        return denoiser.window_logits(ids, torch.cat([columns, self.columns], 1), sees, positions)

    def hindsight(self, logits: Tensor, row: Tensor, place: Tensor) -> Tensor:
        """Probabilities [N] float32 of the shadow's tokens by `logits` [N, V] at `place` [N] of `row` [N]."""
        tokens = self.tokens[row, place.clamp(min=0)][:, None]
        parts = [logits[part].float().softmax(-1).gather(1, tokens[part]) for part in slices_of(len(logits), logits)]
        return torch.cat(parts).squeeze(1)

    def onto(self, probabilities: Tensor, columns: Tensor) -> Tensor:
        """The shadow's `probabilities` [R, B] at the window's `columns` [R, W]; 0 at columns outside the shadow."""
        on_canvas = probabilities.new_zeros(len(columns), self.n_columns)
        return on_canvas.scatter(1, self.columns, probabilities).gather(1, columns)


class Hindsight(PlaceLogits, Reader):
    """Asks the model with a shadow after each canvas, and gives `View.hindsight`."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._shadow: Shadow | None = None  # of the pass that runs
        self._probabilities: Tensor | None = None

    def of(self, asked: Asked) -> Tensor:
        """Logits [N, V] at the places of the canvases; those of the shadow are kept as probabilities."""
        window, batch = asked.window, self.batch
        shadow = self._shadow = Shadow.of(window, batch.most_slots)
        n_rows, width = asked.tokens.shape
        length = shadow.columns.shape[1]
        of_canvas = asked.at + asked.place * length
        of_shadow = np.arange(n_rows)[:, None] * (width + length) + width + np.arange(length)
        outputs = as_tensor(np.concatenate([of_canvas, of_shadow.ravel()]), batch.device)
        there = shadow.on(batch.device)
        is_real = as_tensor(window.columns < self._lengths(window), batch.device)
        ids = as_tensor(asked.tokens, batch.device)
        logits = there.logits(batch.denoiser, window.run, ids, is_real, outputs)
        of_places, of_shadows = logits[: len(asked.at)], logits[len(asked.at) :]
        for banned_id in batch.work.banned_ids:
            of_shadows.select(1, banned_id).fill_(-torch.inf)
        every = iota(n_rows * length, batch.device)
        self._probabilities = there.hindsight(of_shadows, every // length, every % length)
        return of_places

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """The shadow's probabilities."""
        assert self._probabilities is not None
        return {"hindsight": self._probabilities}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """`View.hindsight`."""
        assert self._shadow is not None
        shadow = self._shadow
        probabilities = torch.from_numpy(found["hindsight"]).view(shadow.columns.shape)
        wanted = shadow.wanted(self.batch.mask_token_id)
        return {"hindsight": shadow.onto(probabilities * wanted, torch.from_numpy(asked.window.columns))}

    def _lengths(self, window: Window) -> Numbers:
        """The length [P, 1] of each canvas."""
        return np.array([0 if row is None else len(row.canvas.token_ids) for row in window.rows])[:, None]
