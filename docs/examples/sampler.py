"""A sampler in one file: path planning, which masks filled tokens again while it goes on (P2, arXiv 2502.03540).

Load it with `plugins=sampler.py`, import it before decoding, or let a package name it in its pyproject.toml:

    [project.entry-points."mdlm_lm_eval.sampler"]
    path_planning = "acme.sampler"

What imports torch is imported where it is needed, so that the help of commands stays fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from mdlm_lm_eval.decoding.sampler import Choice, Needs, Sampler, Step, View
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class PathPlanning(Sampler):
    """Every pass fills all masks, and masks the least confident places of the block again, filled before or now."""

    ends_as_planned: ClassVar[bool] = True
    settled: ClassVar[Literal["at once", "with its block", "with the canvas"]] = "with its block"

    eta: float = option(1.0, "how readily tokens that were filled before are masked again; 0 is never", least=0)

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Its passes are planned."""
        return "sampler=path_planning does not work with a parallel rule" if options.is_parallel else None

    def needs(self, options: DecodingOptions) -> Needs:
        """How confident the model is at filled tokens, too."""
        return Needs(confidence=True, filled=True, proposals_for_filled=True)

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """After pass i, as many masks are left as the schedule says."""
        from mdlm_lm_eval.decoding.selection import unmask_counts

        counts = unmask_counts(n_masks, steps, options.schedule)
        return [Step(fill=n_masks, back=n_masks - sum(counts[: i + 1])) for i in range(steps)]

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Ranks by log confidence (at most 0), multiplied by `eta` for filled tokens."""
        from mdlm_lm_eval.decoding.selection import lowest

        score = view.confidence.log()
        score = score.where(view.masks, score * self.eta)
        return Choice(fill=view.masks, back=lowest(score, view.masks | view.filled, view.back))


register(name="path_planning", sampler=PathPlanning)
