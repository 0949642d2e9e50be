"""Samplers that look back: they take tokens back (ReMDM, RCR, WINO), or fill where the model stays of one mind (KLASS).

A remasking schedule says how many masks each pass over a block fills, and how many tokens it takes back: those of which
the model was least sure when it filled them, by the order of `unmasking`. Nothing in a block is decided before its last
pass, and with `rcr` nothing before the canvas's.

WINO (arXiv 2507.18578) fills many masks at once, and takes back what the model does not believe any more. Behind the
canvas a shadow of masks has the positions of the block. A shadow's mask sees the canvas but for its own position, and
the shadow; the canvas sees the canvas alone. So it tells how likely a token is that is filled already.

KLASS (arXiv 2511.05664) fills masks where the model is sure, and its distribution has hardly changed for some passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.schedules import unmask_counts
from mdlm_lm_eval.decoding.selection import sure_enough
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions

if TYPE_CHECKING:
    from mdlm_lm_eval.decoding.rows import Rows

_MOST, _LEAST, _SHARE = 20, 5, 0.7  # of a block's masks, what a pass fills at most
_FIRST = 30  # stands for what the pass before a block's first one filled


def remdm(length: int, _steps: int, options: DecodingOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """ReMDM-LLaDA: 7/8 of a block one by one; as many passes as it is long refill `remask_tokens` of it; the rest."""
    begins = int(length / 8 * 7)
    loop = range(begins, begins + length)
    counts = [options.remask_tokens if i in loop else 1 for i in range(2 * length)]
    return tuple(counts), tuple(options.remask_tokens if i + 1 in loop else 0 for i in range(2 * length))


def rcr(length: int, steps: int, options: DecodingOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """RCR (MDPO, arXiv 2508.13148): a pass fills all masks up to the block's end and takes back all but the schedule's.

    Tokens of earlier blocks are taken back, too.
    """
    counts = unmask_counts(length, steps, options.schedule)
    everything = 2**31
    return (everything,) * steps, tuple(length - sum(counts[: i + 1]) for i in range(steps))


def wino(_length: int, _steps: int, _options: DecodingOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """WINO plans nothing: a block ends when it holds no mask."""
    return (), ()


REMASKING = {"remdm": remdm, "rcr": rcr, "wino": wino}


def least_sure(s: "Rows", columns: Tensor, priority: Tensor, chosen: Tensor, filled: Tensor, counts: Tensor) -> Tensor:
    """The `counts` [R] of `filled` [R, W] that had the lowest priority when they were; `chosen` [R, W] are so now."""
    remembered = priority.where(chosen, s.remembered.gather(1, columns))
    s.remembered.scatter_(1, columns, remembered)
    rank = remembered.masked_fill(~filled, float("inf")).argsort(dim=1, stable=True).argsort(1)
    return filled & (rank < counts[:, None])


@dataclass(frozen=True)
class Shadow:
    """`columns`, `tokens` and `is_there` [R, B] of the block's positions, of R canvases of T - 1 columns."""

    columns: Tensor
    tokens: Tensor
    is_there: Tensor
    width: int

    @classmethod
    def of(cls, s: "Rows", number: Tensor, n_before: Tensor, length: int) -> "Shadow":
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


def compare_with_before(
    s: "Rows", logits: Tensor, row: Tensor, slot_numbers: Tensor, spread: Callable[[Tensor], Tensor], columns: Tensor
) -> Tensor:
    """How much distributions changed in the last passes, [R, H, W]; those of this pass are remembered.

    `logits` [N, V] are of masks `slot_numbers` [N] of `row` [N]; `spread` puts [N] into a window's `columns` [R, W]. It
    is the Kullback-Leibler divergence of a distribution from that of the pass before, zeros where there was none.
    """
    probabilities = logits.float().softmax(-1)
    changes = (probabilities + 1e-12).log() - (s.before[row, slot_numbers] + 1e-12).log()
    now = torch.zeros_like(s.divergences[:, 0]).scatter(1, columns, spread((probabilities * changes).sum(-1)))  # [R, T]
    s.before[row, slot_numbers] = probabilities
    s.divergences.copy_(torch.cat([s.divergences[:, 1:], now[:, None]], 1))
    return s.divergences.gather(2, columns[:, None].expand(-1, s.divergences.shape[1], -1))


def choose_stable(
    by_schedule: Tensor,
    candidates: Tensor,
    confidence: Tensor,
    divergences: Tensor,
    step: Tensor,
    options: DecodingOptions,
) -> Tensor:
    """Where [R, W] of `candidates` a mask is filled: all that are ready, in rows without one what the schedule says.

    With `unmask_strategy=max_conf`, the surest of those that are ready. `divergences` [R, H, W] are those of the last
    passes; `step` [R] counts a block's.
    """
    assert options.kl_threshold is not None
    is_stable = (divergences < options.kl_threshold).all(1) & (step >= options.kl_history - 1)[:, None]
    ready = candidates & is_stable & sure_enough(confidence, options.confidence_threshold, strict=True)
    if options.unmask_strategy == "max_conf":
        surest = confidence.masked_fill(~ready, -torch.inf).argmax(1, keepdim=True)
        ready = ready & torch.zeros_like(ready).scatter(1, surest, True)
    return torch.where(ready.any(1, keepdim=True), ready, by_schedule)
