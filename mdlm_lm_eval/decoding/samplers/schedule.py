"""Fills masks by a schedule or a threshold, and never changes them again (LLaDA, Dream, Fast-dLLM, EB-sampler)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mdlm_lm_eval.decoding.sampler import Choice, Sampler, Step, View
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class Schedule(Sampler):
    """Fills the masks of highest priority, as many as the schedule says, and all that a parallel rule accepts."""

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """At most one pass per mask under a parallel rule, whatever `steps` is."""
        return n_masks if options.is_parallel else None

    def plan(self, n_masks: int, steps: int, options: DecodingOptions, *, after_one: bool = False) -> Sequence[Step]:
        """The schedule's steps, without those that fill nothing (Dream's schedule has some).

        After a first pass that fills one mask, those are run and counted, as in Fast-dLLM's sampler for Dream.
        """
        from mdlm_lm_eval.decoding.selection import unmask_counts

        if options.is_parallel and steps >= n_masks:
            return ()
        if after_one:
            return [Step(count) for count in unmask_counts(n_masks, steps, options.schedule, after_one=True)]
        # Dream's schedule has steps that fill nothing, so other steps would fill more masks than a parallel rule says.
        schedule = "linear" if options.is_parallel and options.schedule == "dream" else options.schedule
        return [Step(count) for count in unmask_counts(n_masks, steps, schedule) if count]

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Fills masks by priority and by the options' parallel rule."""
        from mdlm_lm_eval.decoding.selection import select

        fill = select(
            view,
            threshold=options.confidence_threshold,
            factor=options.parallel_factor,
            entropy_bound=options.entropy_bound,
        )
        return Choice(fill=fill)


register(name="schedule", sampler=Schedule)
