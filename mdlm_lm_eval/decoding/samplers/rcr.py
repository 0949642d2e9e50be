"""RCR, running confidence remasking (MDPO, arXiv 2508.13148): fills everything, and keeps what was surest so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from mdlm_lm_eval.decoding.sampler import Choice, Needs, Sampler, Step, View
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_EVERYTHING = 2**31


@dataclass(frozen=True)
class Rcr(Sampler):
    """A pass fills all masks up to the block's end and masks all but the schedule's again; earlier blocks too."""

    ends_as_planned: ClassVar[bool] = True
    settled: ClassVar[Literal["at once", "with its block", "with the canvas"]] = "with the canvas"

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Tokens of earlier blocks must be seen by a pass."""
        if attention.is_block_causal or options.is_approximate:
            return f"sampler=rcr does not work with block-causal attention or cache={options.cache}"
        if options.is_parallel or options.append_blocks:
            return "sampler=rcr does not work with a parallel rule or append_blocks"
        return None

    def needs(self, options: DecodingOptions) -> Needs:
        """All tokens and masks up to the block's end."""
        return Needs(filled=True, earlier_blocks=True)

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """After step i, as many masks are left as the schedule says."""
        from mdlm_lm_eval.decoding.schedules import unmask_counts

        counts = unmask_counts(n_masks, steps, options.schedule)
        return [Step(_EVERYTHING, n_masks - sum(counts[: i + 1])) for i in range(steps)]

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """priority: [R, T] float32, each token's when it was filled."""
        import torch

        return {"priority": torch.zeros(n_rows, n_columns, device=device)}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Everything, less the tokens that had the lowest priority when they were filled."""
        from mdlm_lm_eval.decoding.selection import least_sure, select

        fill, best = select(view)
        back, priority = least_sure(view, fill)
        return Choice(fill=fill, back=back, best=best, state={"priority": priority})


register(name="rcr", sampler=Rcr)
