"""How likely a filled token would be if its own position were masked: a shadow of the block follows the canvas.

A mask in the shadow has the position of its column. It sees all other columns of the canvas, and the shadow; the canvas
sees the canvas alone, so that one pass gives both (arXiv 2507.18578).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import slices_of
from mdlm_lm_eval.model.denoiser import Denoiser


@dataclass(frozen=True)
class Shadow:
    """`columns`, `tokens` and `is_there` [R, B] of the block's positions, on R canvases of T columns."""

    columns: Tensor
    tokens: Tensor
    is_there: Tensor
    n_columns: int

    @classmethod
    def of(cls, rows: Any, number: Tensor, n_before: Tensor, length: int) -> "Shadow":
        """The shadow of blocks `number` [R] with `n_before` [R] slots before them and at most `length` slots in them.

        rows: `Rows`, or one row with the same `tokens`, `slot_number` and `block_of`.
        """
        slot = n_before[:, None] + torch.arange(length, device=number.device)  # [R, B]
        columns = (rows.slot_number[:, None] == slot[..., None]).long().argmax(2)
        is_there = rows.block_of.gather(1, columns) == number[:, None]
        n_columns = rows.tokens.shape[1]
        columns = columns.where(is_there, n_columns - 1)
        return cls(columns, rows.tokens.gather(1, columns), is_there, n_columns)

    def wanted(self, mask_token_id: int) -> Tensor:
        """[R, B] bool, the tokens whose probability is needed: all that are no masks."""
        return (self.tokens != mask_token_id) & self.is_there

    def logits(
        self, denoiser: Denoiser, columns: Tensor, tokens: Tensor, is_real: Tensor, positions: Tensor | None
    ) -> Tensor:
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
