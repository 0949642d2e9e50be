"""Accuracy against speed: the frontier of several ways of decoding, and ParallelBench's PB90."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mdlm_lm_eval.results.statistics import Score, difference

# (tokens per forward pass or another speed, accuracy)
Point = tuple[float, float]

# Measures of speed by the names of `COSTS`: the first in which settings differ counts; and whether more is faster.
SPEEDS = {"positions_per_token": False, "tokens_per_second": True, "seconds": False, "tokens_per_pass": True}
TIMES = ("tokens_per_second", "seconds")
# Times the speed of another that is no faster by a clock: of our committed results, three of four pairs of identical
# runs are within it. What is counted is the same in each run.
SLACK = 1.5


def parallel_bench(points: Sequence[Point], least: float) -> float | None:
    """ParallelBench's PB90 for `least=90` (arXiv 2510.04767): the most tokens per evaluation with that score (percent).

    `points` are the settings of one method: the tokens that were asked for per forward pass, those behind an EOS too,
    and the score, both averaged over all tasks. Nothing is interpolated, and no score of one token a pass counts. None
    where none is good enough.
    """
    return max((speed for speed, score in points if score >= least), default=None)


class Setting(NamedTuple):
    """A way of decoding: its speed (more is faster), its score, and whether no cache may change an answer.

    Of two settings the faster has more than `slack` times the speed of the other.
    """

    speed: float
    score: float
    share: Score | None = None
    is_exact: bool = True
    slack: float = 1.0

    def is_faster(self, other: "Setting") -> bool:
        """By more than noise."""
        return self.speed > self.slack * other.speed

    def beats(self, other: "Setting") -> bool:
        """Whether it is better and not slower, or faster and not worse."""
        faster, slower = self.is_faster(other), other.is_faster(self)
        return self.score >= other.score and not slower and (faster or self.score > other.score)


def measure_of_speed(costs: Sequence[Mapping[str, float | None]], *, is_one_machine: bool) -> str | None:
    """The name in `COSTS` by which ways of decoding are compared, a time on one machine. None where none differs."""
    for name in SPEEDS:
        found = [amount for cost in costs if (amount := cost.get(name))]
        is_known = len(found) == len(costs) and (is_one_machine or name not in TIMES)
        if found and is_known and max(found) > slack_of(name) * min(found):
            return name
    return None


def slack_of(measure: str) -> float:
    """`Setting.slack` of a measure of speed."""
    return SLACK if measure in TIMES else 1.0


def speed_of(amount: float, measure: str) -> float:
    """Of an amount of a measure, so that more is faster."""
    return amount if SPEEDS[measure] else 1 / amount


def marks(settings: Sequence[Setting]) -> list[str]:
    """Of each way of decoding a checkpoint "on" where no other beats it; exact and approximate ones apart.

    "hollow" where the paired interval does not tell it from a neighbour on this frontier, "near" where it is beaten by
    a difference of scores alone that is not significant, "" where it is beaten by more.
    """
    found = [""] * len(settings)
    for is_exact in (True, False):
        own = [n for n, one in enumerate(settings) if one.is_exact == is_exact]
        better = {n: [other for m in own if (other := settings[m]).beats(settings[n])] for n in own}
        on = sorted((n for n in own if not better[n]), key=lambda n: settings[n].speed)
        told = [_differ(settings[one], settings[other]) for one, other in pairwise(on)]
        for k, n in enumerate(on):
            found[n] = "on" if all(told[max(k - 1, 0) : k + 1]) else "hollow"
        for n, others in better.items():
            if others and not any(one.is_faster(settings[n]) or _differ(one, settings[n]) for one in others):
                found[n] = "near"
    return found


def _differ(first: Setting, second: Setting) -> bool:
    return bool(first.share and second.share and difference(first.share, second.share).is_significant)
