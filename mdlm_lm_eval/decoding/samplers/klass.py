"""Fills masks with high confidence and nearly unchanged distributions (KLASS, arXiv 2511.05664)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mdlm_lm_eval.decoding.sampler import Choice, Needs, Sampler, Step, View
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class Klass(Sampler):
    """Fills all masks that are sure and stable; in rows without such masks, as many as the schedule says."""

    asked_by: ClassVar[str | None] = "kl_threshold"
    runs_whole_canvases: ClassVar[bool] = True  # over which distributions are compared

    kl_threshold: float | None = option(
        None,
        "Fill only masks whose distribution changed less than this in recent passes. Needs confidence_threshold",
        above=0,
    )
    kl_history: int = option(2, "Number of passes that kl_threshold compares", least=1)
    unmask_strategy: str = option(
        "all", "Fill all masks below kl_threshold, or only the surest of them", choices=lambda: ("all", "max_conf")
    )

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses to run without both thresholds."""
        if self.kl_threshold is None:
            return "sampler=klass needs kl_threshold"
        if options.confidence_threshold is None:
            return f"kl_threshold={self.kl_threshold} needs confidence_threshold"
        return None

    def needs(self, options: DecodingOptions) -> Needs:
        """Probabilities, and divergences of the last passes."""
        return Needs(confidence=True, step=True, history=self.kl_history)

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """The schedule's counts; the last step fills all masks that are left."""
        from mdlm_lm_eval.decoding.selection import unmask_counts

        counts = [count for count in unmask_counts(n_masks, steps, options.schedule) if count]
        return [*map(Step, counts[:-1]), Step(n_masks)]

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Fills masks that are sure and stable; with `unmask_strategy=max_conf`, only the surest of them."""
        from mdlm_lm_eval.decoding.selection import select, sure_enough

        assert self.kl_threshold is not None
        by_schedule = select(view)
        is_stable = (view.divergence < self.kl_threshold).all(1) & (view.step >= self.kl_history - 1)[:, None]
        ready = view.masks & is_stable & sure_enough(view.confidence, options.confidence_threshold, strict=True)
        if self.unmask_strategy == "max_conf":
            surest = view.confidence.masked_fill(~ready, -float("inf")).argmax(1, keepdim=True)
            ready = ready & ready.new_zeros(ready.shape).scatter(1, surest, True)
        return Choice(fill=ready.where(ready.any(1, keepdim=True), by_schedule))


register(name="klass", sampler=Klass)
