"""Frontier and AUP; the worked examples agree with d3LLM's own code."""

import pytest

from mdlm_lm_eval.results.parallelism import Point, accuracy_under_parallelism, frontier


@pytest.mark.parametrize(
    ("points", "best", "area"),
    [
        ([(1, 80), (2, 79), (4, 76)], 80, 299.5523),
        ([(4, 76), (1, 80), (2, 79)], 80, 299.5523),
        ([(1, 80), (2, 79), (4, 76)], 82, 284.3811),
        ([(1, 80), (3, 82)], 82, 236.3554),
        ([(1, 80), (2, 74), (4, 76)], 80, 298.1207),
        ([(2, 70)], 70, 140),
        ([(1, 80), (2, 75)], 80, 151.0886),  # five points less is not more than five
    ],
)
def test_accuracy_under_parallelism(points: list[Point], best: float, area: float) -> None:
    assert accuracy_under_parallelism(points, best) == pytest.approx(area, abs=5e-5)


def test_no_area_where_the_fastest_point_loses_too_much() -> None:
    assert accuracy_under_parallelism([(1, 80), (4, 74)], 80) is None
    assert accuracy_under_parallelism([], 80) is None


def test_the_frontier_is_what_nothing_beats() -> None:
    points: list[Point] = [(1, 80), (2, 80), (2, 79), (4, 70), (4, 70), (3, 60)]
    assert frontier(points) == [False, True, False, True, True, False]
