"""Accuracy against speed: the frontier of several ways of decoding, and ParallelBench's PB90."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mdlm_lm_eval.results.statistics import Score, difference

# (tokens per forward pass or another speed, accuracy)
Point = tuple[float, float]

# Measures of speed by the names of `COSTS`, the first that is known counts, and whether more of it is faster.
_SPEEDS = {"tokens_per_second": True, "seconds": False, "positions_per_token": False, "tokens_per_pass": True}
TIMES = ("tokens_per_second", "seconds")


def parallel_bench(points: Sequence[Point], least: float) -> float | None:
    """ParallelBench's PB90 for `least=90` (arXiv 2510.04767): the most tokens per evaluation with that score (percent).

    `points` are the settings of one method: the tokens that were asked for per forward pass, those behind an EOS too,
    and the score, both averaged over all tasks. Nothing is interpolated, and no score of one token a pass counts. None
    where none is good enough.
    """
    return max((speed for speed, score in points if score >= least), default=None)


def frontier(points: Sequence[Point]) -> list[bool]:
    """Of each (speed, accuracy), whether no other is better in one and at least as good in the other."""
    return [
        not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)
        for point in points
    ]


class Setting(NamedTuple):
    """A way of decoding: its speed (more is faster), its score, and whether no cache may change an answer."""

    speed: float
    score: float
    share: Score | None
    is_exact: bool


def measure_of_speed(costs: Sequence[Mapping[str, float | None]], *, is_one_machine: bool) -> str | None:
    """The name in `COSTS` by which ways of decoding are compared, a time on one machine. None where none differs."""
    known = [name for name in _SPEEDS if is_one_machine or name not in TIMES]
    found = ([cost.get(name) for cost in costs] for name in known)
    return next((name for name, own in zip(known, found, strict=True) if all(own) and len({*own}) > 1), None)


def speed_of(amount: float, measure: str) -> float:
    """Of an amount of a measure, so that more is faster."""
    return amount if _SPEEDS[measure] else 1 / amount


def marks(settings: Sequence[Setting]) -> list[str]:
    """Of each way of decoding a checkpoint "on" where it is on the frontier, "" beside it; exact and approximate apart.

    "hollow" where the paired interval does not tell it from a neighbour on the frontier.
    """
    found = [""] * len(settings)
    for is_exact in (True, False):
        own = [n for n, one in enumerate(settings) if one.is_exact == is_exact]
        is_on = frontier([(settings[n].speed, settings[n].score) for n in own])
        on = sorted((n for n, one in zip(own, is_on, strict=True) if one), key=lambda n: settings[n].speed)
        told = [_differ(settings[one].share, settings[other].share) for one, other in pairwise(on)]
        for k, n in enumerate(on):
            found[n] = "on" if all(told[max(k - 1, 0) : k + 1]) else "hollow"
    return found


def _differ(first: Score | None, second: Score | None) -> bool:
    return bool(first and second and difference(first, second).is_significant)
