"""Fills many masks at once, and masks tokens again that have become unlikely (WINO, arXiv 2507.18578)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.decoding.sampler import Choice, Needs, Sampler, Settled, View
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A pass fills at most this share of the masks that are left, and at most this number; this limit is at least `_LEAST`.
_SHARE, _MOST, _LEAST = 0.7, 20, 5


@dataclass(frozen=True)
class Wino(Sampler):
    """Masks that exceed `confidence_threshold` are filled; tokens that are unlikely in hindsight are masked again.

    A token's probability in hindsight is the one that it would have if its own position were masked.
    """

    settled: ClassVar[Settled] = "with its block"
    reads_priority: ClassVar[bool] = False
    runs_whole_canvases: ClassVar[bool] = True  # after which the shadow stands

    remask_threshold: float = option(
        0.9, "Mask a token again if its probability falls below this threshold", above=0, most=1, also="threshold_back"
    )

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses to run without a threshold, with appended blocks, or with guidance."""
        if options.confidence_threshold is None:
            return "sampler=wino needs confidence_threshold"
        if options.append_blocks:
            return "sampler=wino does not work with append_blocks"
        if options.cfg_scale:
            return f"cfg_scale must be 0 with sampler=wino, not {options.cfg_scale:g}"
        return None

    def needs(self, options: DecodingOptions) -> Needs:
        """The block's tokens, and their probabilities in hindsight."""
        return Needs(confidence=True, filled=True, hindsight=True)

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """At most one pass per token, as a pass masks fewer tokens than the one before filled."""
        return n_masks

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """last: [R], masks that the pass before filled in this block; 0 in its first pass, which masks none."""
        import torch

        return {"last": torch.zeros(n_rows, dtype=torch.long, device=device)}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Fills at most 70% of the masks, within 5 to 20. Fewer tokens are masked again than the pass before filled.

        A pass that fills one token masks none.
        """
        from mdlm_lm_eval.decoding.selection import lowest, sure_enough

        last = view.state["last"]
        most = (view.masks.sum(1) * _SHARE).long().clamp(min=_LEAST, max=_MOST)
        sure = view.masks & sure_enough(view.confidence, options.confidence_threshold, strict=True)
        fill = lowest(-view.confidence, view.masks, sure.sum(1).minimum(most).clamp(min=1))
        doubted = view.filled & (view.hindsight < self.remask_threshold)
        n_doubted = doubted.sum(1)
        n_back = (last - 1).where(n_doubted >= last, n_doubted)
        n_filled = fill.sum(1)
        back = lowest(view.hindsight, doubted, n_back * (n_filled > 1))
        goes_on = (view.masks & ~fill | back).any(1)
        return Choice(fill=fill, back=back, state={"last": n_filled * goes_on})


register(name="wino", sampler=Wino)
