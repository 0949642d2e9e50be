"""Frontier, AUP and speed at a quality; the worked examples of AUP agree with d3LLM's own code."""

import pytest

from mdlm_lm_eval.results.parallelism import Point, accuracy_under_parallelism, frontier, tokens_at_quality


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


@pytest.mark.parametrize(
    ("points", "share", "tokens"),
    [
        ([(1, 80), (2, 76), (4, 68), (8, 20)], 0.9, 3.0),  # 72 is half way from 76 to 68
        ([(1, 80), (2, 76), (4, 68), (8, 20)], 0.95, 2.0),
        ([(8, 20), (4, 68), (1, 80), (2, 76)], 0.5, 4 + 4 * 28 / 48),
        ([(1, 80), (2, 60), (3, 76), (4, 68)], 0.9, 3.5),  # the setting at 2 is beaten and counts for nothing
        ([(1, 80), (2, 79)], 0.9, 2.0),
        ([(2, 60), (4, 50)], 0.9, None),  # a way of decoding without one token a pass
        ([], 0.9, None),
    ],
)
def test_the_most_tokens_at_a_quality(points: list[Point], share: float, tokens: float | None) -> None:
    found = tokens_at_quality(points, share, 80)
    assert found == (None if tokens is None else pytest.approx(tokens))
    assert tokens_at_quality(points, share, 0) is None
