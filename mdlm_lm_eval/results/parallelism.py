"""Accuracy against speed: the frontier of several ways of decoding, and the area under one (AUP)."""

import math
from collections.abc import Sequence

# (tokens per forward pass or another speed, accuracy)
Point = tuple[float, float]

_MOST_POINTS_LOST = 5.0
_PENALTY = 3.0


def accuracy_under_parallelism(points: Sequence[Point], best: float) -> float | None:
    """AUP of one method on one task (d3LLM, arXiv 2601.07568) from its (tokens per forward pass, accuracy in percent).

    The area under y W(y) over the tokens per pass, before the first point under y itself; W(y) = min(exp(-3 (1 - y /
    best)), 1), and `best` is the best accuracy of any method on the task. Points that lose more than 5 percentage
    points against the slowest do not count. None without points, and where the fastest one loses more.
    """
    if not points or max(points)[1] < (least := min(points)[1] - _MOST_POINTS_LOST):
        return None
    first, *rest = sorted(points)
    area, before = first[0] * first[1], first
    for point in rest:
        if point[1] >= least:
            heights = (y * min(math.exp(-_PENALTY * (1 - y / best)), 1) if best else 0 for y in (before[1], point[1]))
            area += (point[0] - before[0]) * sum(heights) / 2
            before = point
    return area


def frontier(points: Sequence[Point]) -> list[bool]:
    """Of each (speed, accuracy), whether no other is better in one and at least as good in the other."""
    return [
        not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)
        for point in points
    ]
