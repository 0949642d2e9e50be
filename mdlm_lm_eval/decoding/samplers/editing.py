"""Fills masks as `schedule` does, and corrects tokens that it filled before in the same block (LLaDA2.1)."""

from dataclasses import dataclass
from typing import ClassVar

from mdlm_lm_eval.decoding.sampler import Choice, Needs, Settled, View
from mdlm_lm_eval.decoding.samplers.schedule import Schedule
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register

# LLaDA2.1's own default.
_POST_STEPS = 16
# Options that are shared with models that also insert and delete.
EDITING_THRESHOLD = option(None, "Confidence above which a filled token is changed", least=0, most=1)
MAX_POST_STEPS = option(None, "Maximum number of editing passes after the last mask of a block is filled", least=0)


@dataclass(frozen=True)
class Editing(Schedule):
    """A filled token becomes the one that the model proposes, if its confidence exceeds `editing_threshold`.

    After a block's last mask, passes that only edit follow, until one changes nothing.
    """

    asked_by: ClassVar[str | None] = "editing_threshold"
    settled: ClassVar[Settled] = "with its block"
    edits: ClassVar[bool] = True

    editing_threshold: float | None = EDITING_THRESHOLD
    max_post_steps: int | None = MAX_POST_STEPS

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses to run without a threshold."""
        return "sampler=editing needs editing_threshold" if self.editing_threshold is None else None

    def needs(self, options: DecodingOptions) -> Needs:
        """Proposals for filled tokens, too."""
        return Needs(confidence=True, filled=True, proposals_for_filled=True)

    def edit_passes(self, options: DecodingOptions) -> int:
        """Passes after the last mask, LLaDA2.1's 16 by default."""
        return _POST_STEPS if self.max_post_steps is None else self.max_post_steps

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Fills masks as without edits, and changes filled tokens by their proposals' confidence."""
        assert self.editing_threshold is not None
        filled = super().choose(view, options)
        return filled._replace(change=view.filled & (view.confidence > self.editing_threshold))


register(name="editing", sampler=Editing)
