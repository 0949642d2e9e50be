"""KLASS (arXiv 2511.05664): masks are filled where the model is sure, and has been of one mind for some passes."""

from collections.abc import Callable

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.decoding.selection import sure_enough
from mdlm_lm_eval.options import DecodingOptions


def compare(
    s: Rows, logits: Tensor, row: Tensor, slot_numbers: Tensor, spread: Callable[[Tensor], Tensor], columns: Tensor
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


def choose(
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
