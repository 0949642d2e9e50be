"""Samplers that take tokens back: how many masks each pass over a block fills, and how many tokens it takes back.

A pass takes back those of which the model was least sure when it filled them, by the order of `unmasking`. Nothing in a
block is decided before its last pass, and with `rcr` nothing before the canvas's.
"""

from typing import TYPE_CHECKING

from mdlm_lm_eval.decoding.schedules import unmask_counts
from mdlm_lm_eval.options import DecodingOptions

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.decoding.rows import Rows


def least_sure(
    s: "Rows", columns: "Tensor", priority: "Tensor", chosen: "Tensor", filled: "Tensor", counts: "Tensor"
) -> "Tensor":
    """The `counts` [R] of `filled` [R, W] that had the lowest priority when they were; `chosen` [R, W] are so now."""
    remembered = priority.where(chosen, s.remembered.gather(1, columns))
    s.remembered.scatter_(1, columns, remembered)
    rank = remembered.masked_fill(~filled, float("inf")).argsort(dim=1, stable=True).argsort(1)
    return filled & (rank < counts[:, None])


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
    """WINO plans nothing (`wino.py`): a block ends when it holds no mask."""
    return (), ()


REMASKING = {"remdm": remdm, "rcr": rcr, "wino": wino}
