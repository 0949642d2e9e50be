"""Samplers that mask tokens again by a plan: what they share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.declared import sampler_of
from mdlm_lm_eval.decoding.sampler import Choice, Sampler, View
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Remasking(Sampler):
    """Fills masks by priority, and masks those tokens again that had the lowest priority when they were filled."""

    ends_as_planned: ClassVar[bool] = True
    runs_whole_canvases: ClassVar[bool] = True

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses parallel rules and appended blocks, as passes are planned for a whole canvas."""
        if options.is_parallel or options.append_blocks:
            return f"sampler={sampler_of(options)} does not work with a parallel rule or append_blocks"
        return None

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """priority: [R, T] float32, each token's priority when it was filled."""
        import torch

        return {"priority": torch.zeros(n_rows, n_columns, device=device)}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Fills and remasks as many tokens as the planned step says."""
        from mdlm_lm_eval.decoding.selection import lowest, select

        fill = select(view)
        priority = view.priority.where(fill, view.state["priority"].gather(1, view.columns))
        back = lowest(priority, view.filled | fill, view.back)
        return Choice(fill, back=back, state={"priority": view.state["priority"].scatter(1, view.columns, priority)})
