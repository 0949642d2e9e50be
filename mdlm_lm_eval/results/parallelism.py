"""Accuracy against speed: the frontier of several ways of decoding, the area under one (AUP), ParallelBench's PB90."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mdlm_lm_eval.results.statistics import Score, difference

# (tokens per forward pass or another speed, accuracy)
Point = tuple[float, float]

# Measures of speed by the names of `COSTS`, the first that is known counts, and whether more of it is faster.
_SPEEDS = {"tokens_per_second": True, "seconds": False, "positions_per_token": False, "tokens_per_pass": True}
_OF_MACHINE = ("tokens_per_second", "seconds")
_ONE_TOKEN = 1.005  # per pass, to the two digits that are shown
_MOST_POINTS_LOST = 5.0
_PENALTY = 3.0


def accuracy_under_parallelism(points: Sequence[Point], best: float) -> float | None:
    """AUP of one method on one task (d3LLM, arXiv 2601.07568) from its (tokens per forward pass, accuracy in percent).

    The area under y W(y) over the tokens per pass, before the first point under y itself; W(y) = min(exp(-3 (1 - y /
    best)), 1), and `best` is the best accuracy of any method on the task. Points that lose more than 5 percentage
    points against the slowest do not count. None without a point of at most one token a pass, as all before the first
    point counts in full, and where the fastest one loses more.
    """
    if not points or min(points)[0] >= _ONE_TOKEN or max(points)[1] < (least := min(points)[1] - _MOST_POINTS_LOST):
        return None
    first, *rest = sorted(points)
    area, before = first[0] * first[1], first
    for point in rest:
        if point[1] >= least:
            heights = (y * min(math.exp(-_PENALTY * (1 - y / best)), 1) if best else 0 for y in (before[1], point[1]))
            area += (point[0] - before[0]) * sum(heights) / 2
            before = point
    return area


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
    known = [name for name in _SPEEDS if is_one_machine or name not in _OF_MACHINE]
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
        for k, n in enumerate(on if len(own) > 1 else ()):
            found[n] = "on" if all(told[max(k - 1, 0) : k + 1]) else "hollow"
    return found


def _differ(first: Score | None, second: Score | None) -> bool:
    return bool(first and second and difference(first, second).is_significant)
