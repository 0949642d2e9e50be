"""Accuracy against speed: the frontier of several ways of decoding, the area under one (AUP), speed at a quality."""

import math
from collections.abc import Sequence

# (tokens per forward pass or another speed, accuracy)
Point = tuple[float, float]

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


def score_at_slowest(points: Sequence[Point]) -> float:
    """The best score at the slowest speed, to the two digits that are shown; 0 without points."""
    slowest = min((round(speed, 2) for speed, _ in points), default=0)
    return max((score for speed, score in points if round(speed, 2) == slowest), default=0)


def tokens_at_quality(points: Sequence[Point], share: float, base: float) -> float | None:
    """The most tokens per forward pass at which the score is at least `share` of `base`, that of one token a pass.

    From the (tokens per forward pass, score) of one method's settings, and interpolated between those on their
    frontier. None where none is good enough, and where `base` is 0.
    """
    on = sorted(point for point, is_on in zip(points, frontier(points), strict=True) if is_on)  # the score falls
    enough = [n for n, (_, score) in enumerate(on) if score >= share * base]
    if not enough or not base:
        return None
    (speed, score), *faster = on[enough[-1] :]
    return speed + ((faster[0][0] - speed) * (score - share * base) / (score - faster[0][1]) if faster else 0)


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
