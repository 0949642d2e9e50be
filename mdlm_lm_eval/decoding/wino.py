"""WINO (arXiv 2507.18578): fills many masks at once, and takes back what the model does not believe any more.

Behind the canvas a shadow of masks has the positions of the block. A shadow's mask sees the canvas but for its own
position, and the shadow; the canvas sees the canvas alone. So it tells how likely a token is that is filled already.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.decoding.selection import sure_enough
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions

_MOST, _LEAST, _SHARE = 20, 5, 0.7  # of a block's masks, what a pass fills at most
_FIRST = 30  # stands for what the pass before a block's first one filled


@dataclass(frozen=True)
class Shadow:
    """`columns`, `tokens` and `is_there` [R, B] of the block's positions, of R canvases of T - 1 columns."""

    columns: Tensor
    tokens: Tensor
    is_there: Tensor
    width: int

    @classmethod
    def of(cls, s: Rows, number: Tensor, n_before: Tensor, length: int) -> "Shadow":
        """Of the rows' blocks `number` [R], behind `n_before` [R] slots; no block is longer than `length`."""
        slot = n_before[:, None] + torch.arange(length, device=number.device)  # [R, B]
        columns = (s.slot_number[:, None] == slot[..., None]).long().argmax(2)
        is_there = s.block_of.gather(1, columns) == number[:, None]
        columns = columns.where(is_there, s.tokens.shape[1] - 1)
        return cls(columns, s.tokens.gather(1, columns), is_there, s.tokens.shape[1])

    def logits(self, denoiser: Denoiser, columns: Tensor, tokens: Tensor, is_real: Tensor, positions: Tensor) -> Tensor:
        """Logits [N, V] at `positions` [N] of the flattened windows with `tokens` [R, W] and the shadow behind them."""
        itself = columns[:, None] == self.columns[..., None]  # [R, B, W]
        real, there = is_real[:, None], self.is_there[:, None]  # [R, 1, W], [R, 1, B]
        canvas = torch.cat([real, torch.zeros_like(there)], 2).expand(-1, columns.shape[1], -1)  # [R, W, W + B]
        shadow = torch.cat([real & ~itself, there.expand(-1, self.columns.shape[1], -1)], 2)  # [R, B, W + B]
        sees = torch.cat([canvas, shadow], 1)
        ids = torch.cat([tokens, torch.full_like(self.columns, denoiser.mask_token_id)], 1)
        return denoiser.window_logits(ids, torch.cat([columns, self.columns], 1), sees, positions)

    def belief(
        self, logits: Tensor, row: Tensor, offset: Tensor, spread: Callable[[Tensor], Tensor], columns: Tensor
    ) -> Tensor:
        """How likely the tokens of the window's `columns` [R, W] are by the shadow; 0 where it tells nothing."""
        width = columns.shape[1]
        standing = self.tokens[row, (offset - width).clamp(min=0)]  # [N]
        likely = spread(logits.float().softmax(-1).gather(1, standing[:, None]).squeeze(1))[:, width:]  # [R, B]
        return likely.new_zeros(len(columns), self.width).scatter(1, self.columns, likely).gather(1, columns)

    @staticmethod
    def choose(
        candidates: Tensor, filled: Tensor, confidence: Tensor, belief: Tensor, last: Tensor, options: DecodingOptions
    ) -> tuple[Tensor, Tensor]:
        """Masks that a pass fills, of `candidates` [R, W], and tokens that it takes back, of those `filled` before.

        `confidence` of the masks, `belief` of the tokens; `last` [R]: how many the pass before filled, 0 if it is none.
        """

        def first(order: Tensor, among: Tensor, counts: Tensor) -> Tensor:
            rank = order.masked_fill(~among, torch.inf).argsort(dim=1, stable=True).argsort(1)
            return among & (rank < counts[:, None])

        most = (candidates.sum(1) * _SHARE).long().clamp(min=_LEAST, max=_MOST)
        n_sure = (candidates & sure_enough(confidence, options.confidence_threshold, strict=True)).sum(1)
        chosen = first(-confidence, candidates, torch.minimum(n_sure, most).clamp(min=1))
        last = last.masked_fill(last == 0, _FIRST)
        doubted = filled & (belief < options.remask_threshold)
        n_doubted = doubted.sum(1)
        n_back = torch.where(n_doubted >= last, last - 1, n_doubted)
        return chosen, first(belief, doubted, n_back * (chosen.sum(1) > 1))
