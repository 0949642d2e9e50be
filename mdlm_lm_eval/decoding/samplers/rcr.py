"""Fills all masks, and then masks all but the surest tokens again (RCR, arXiv 2508.13148)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mdlm_lm_eval.decoding.remasking import Remasking
from mdlm_lm_eval.decoding.sampler import Needs, Settled, Step
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register

_EVERYTHING = 2**31


@dataclass(frozen=True)
class Rcr(Remasking):
    """A pass fills all masks up to the block's end, and then remasks all tokens there but the schedule's number."""

    settled: ClassVar[Settled] = "with the canvas"

    def needs(self, options: DecodingOptions) -> Needs:
        """All tokens and masks up to the block's end."""
        return Needs(filled=True, earlier_blocks=True)

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """After step i, as many masks are left as the schedule says."""
        from mdlm_lm_eval.decoding.selection import unmask_counts

        counts = unmask_counts(n_masks, steps, options.schedule)
        return [Step(_EVERYTHING, n_masks - sum(counts[: i + 1])) for i in range(steps)]


register(name="rcr", sampler=Rcr)
