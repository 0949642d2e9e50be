"""Accuracy against speed: the frontier of several ways of decoding, and ParallelBench's PB90."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mdlm_lm_eval.results.statistics import Score, difference

# Measures of speed (names of `frame.COSTS`) -> whether more is faster. The first in which settings differ is used.
SPEEDS = {"positions_per_token": False, "tokens_per_second": True, "seconds": False, "tokens_per_pass": True}
TIMES = ("tokens_per_second", "seconds")
# A ratio of speeds below this is noise if speed is a time: three of four pairs of identical runs among our committed
# results are within it. Counts of tokens and positions are the same in each run.
SLACK = 1.5


def parallel_bench(points: Sequence[tuple[float, float]], least: float) -> float | None:
    """ParallelBench's PB90 for `least=90` (arXiv 2510.04767): the most tokens per evaluation with this score (percent).

    `points` are the settings of one method: tokens asked for per forward pass (also those after an EOS), and the score,
    both averaged over all tasks. Nothing is interpolated, and the bar does not depend on the score of one token per
    pass. None if no setting is good enough.
    """
    return max((speed for speed, score in points if score >= least), default=None)


class Contender(NamedTuple):
    """A way of decoding: its amount of a measure of speed, its score, and the name of the frontier that it may be on.

    One setting is faster than another if its speed is more than `slack_of(by)` times the other's.
    """

    amount: float
    by: str
    score: float
    share: Score | None = None
    frontier: Hashable = ""

    @property
    def speed(self) -> float:
        """The amount, or its inverse if fewer is faster."""
        return self.amount if SPEEDS[self.by] else 1 / self.amount

    def is_faster(self, other: "Contender") -> bool:
        """Whether it is faster by more than noise."""
        return self.speed > slack_of(self.by) * other.speed

    def beats(self, other: "Contender") -> bool:
        """Whether it is better and not slower, or faster and not worse."""
        faster, slower = self.is_faster(other), other.is_faster(self)
        return self.score >= other.score and not slower and (faster or self.score > other.score)


def measure_of_speed(costs: Sequence[Mapping[str, float | None]], *, is_one_machine: bool) -> str | None:
    """The name in `SPEEDS` by which ways of decoding are compared, a time only on one machine; None if none differs."""
    for name in SPEEDS:
        found = [amount for cost in costs if (amount := cost.get(name))]
        is_known = len(found) == len(costs) and (is_one_machine or name not in TIMES)
        if found and is_known and max(found) > slack_of(name) * min(found):
            return name
    return None


def slack_of(measure: str) -> float:
    """The ratio of two speeds up to which they do not differ."""
    return SLACK if measure in TIMES else 1.0


def frontier_marks(settings: Sequence[Contender]) -> list[str]:
    """The mark of each way of decoding, compared with those of the same `frontier`.

    "on": no other beats it.
    "hollow": the same, but its score does not differ significantly from a neighbour's on the frontier.
    "near": others beat it, but only by scores that do not differ significantly.
    "": another clearly beats it.
    """
    found = [""] * len(settings)
    for frontier in {one.frontier for one in settings}:
        own = [n for n, one in enumerate(settings) if one.frontier == frontier]
        better = {n: [other for m in own if (other := settings[m]).beats(settings[n])] for n in own}
        on = sorted((n for n in own if not better[n]), key=lambda n: settings[n].speed)
        told = [_differ(settings[one], settings[other]) for one, other in pairwise(on)]
        for k, n in enumerate(on):
            found[n] = "on" if all(told[max(k - 1, 0) : k + 1]) else "hollow"
        for n, others in better.items():
            if others and not any(one.is_faster(settings[n]) or _differ(one, settings[n]) for one in others):
                found[n] = "near"
    return found


def _differ(first: Contender, second: Contender) -> bool:
    return bool(first.share and second.share and difference(first.share, second.share).is_significant)
