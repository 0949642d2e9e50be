"""Accuracy against speed: which points of generation benchmarks nothing beats, and the area under each way's curve."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.rows import Estimate, LeaderboardRow, Speed
from mdlm_lm_eval.results.parallelism import accuracy_under_parallelism, frontier


@dataclass(frozen=True)
class SpeedPoint:
    """One way of decoding at one pace.

    frontiers: "tokens", "seconds", both or none: by what nothing comparable beats it.
    area: of all points of this way (AUP); None where it is not defined.
    """

    row: LeaderboardRow
    speed: Speed
    accuracy: Estimate
    frontiers: tuple[str, ...]
    area: float | None


Found = tuple[LeaderboardRow, Speed, Estimate]


def speed_points(rows: Iterable[LeaderboardRow]) -> list[SpeedPoint]:
    """Every benchmark score whose result file says what it took, by benchmark, model and way.

    Approximate answers have a frontier of their own, and seconds one for each machine.
    """
    found: list[Found] = [
        (row, estimate.speed, estimate)
        for row in rows
        for estimate in row.curve("benchmarks").values()
        if estimate.speed is not None
    ]
    found.sort(key=lambda one: (one[1].benchmark, not one[1].is_exact, one[0].id, one[1].method, _tokens(one)))
    by_tokens = _on_frontier(found, _tokens, lambda one: (one[0].id, one[1].benchmark, one[1].is_exact))
    by_seconds = _on_frontier(found, _rate, lambda one: (one[0].id, one[1].benchmark, one[1].is_exact, one[1].machine))
    areas = {way: _area(points, found) for way, points in _groups(found, _way).items()}
    return [
        SpeedPoint(
            *one,
            frontiers=("tokens",) * tokens + ("seconds",) * seconds,
            area=areas[_way(one)],
        )
        for one, tokens, seconds in zip(found, by_tokens, by_seconds, strict=True)
    ]


def _tokens(one: Found) -> float:
    return one[1].tokens_per_forward


def _rate(one: Found) -> float:
    return -one[1].seconds


def _way(one: Found) -> Hashable:
    return one[0].id, one[1].benchmark, one[1].method


def _groups(found: Sequence[Found], key: Callable[[Found], Hashable]) -> dict[Hashable, list[Found]]:
    groups: dict[Hashable, list[Found]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def _on_frontier(
    found: Sequence[Found], speed: Callable[[Found], float], comparable: Callable[[Found], Hashable]
) -> list[bool]:
    groups = {
        key: [(speed(one), one[2].mean) for one in members] for key, members in _groups(found, comparable).items()
    }
    best = {key: {point for point, is_on in zip(of, frontier(of), strict=True) if is_on} for key, of in groups.items()}
    return [(speed(one), one[2].mean) in best[comparable(one)] for one in found]


def _area(way: Sequence[Found], found: Sequence[Found]) -> float | None:
    """AUP against the best accuracy of any way on the same benchmark."""
    best = max(100 * one[2].mean for one in found if one[1].benchmark == way[0][1].benchmark)
    try:
        return accuracy_under_parallelism([(_tokens(one), 100 * one[2].mean) for one in way], best)
    except ValueError:
        return None
