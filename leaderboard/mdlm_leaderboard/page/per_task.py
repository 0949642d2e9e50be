"""What stands task by task: the heat map of a table, and the numbers by which the page compares two rows."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from mdlm_leaderboard.rows import LeaderboardRow

_MOST_ROWS = 20
_POINTS_PER_SHADE, _SHADES = 5, 8


@dataclass(frozen=True)
class HeatCell:
    """Points that a task loses from the row's best mask count to its worst; `shade` from 0 to 8."""

    text: str
    shade: int


@dataclass(frozen=True)
class HeatMap:
    """A line of cells for each row, one for each task. `n_left_out` rows are not shown."""

    tasks: tuple[str, ...]
    lines: tuple[tuple[LeaderboardRow, tuple[HeatCell, ...]], ...]
    n_left_out: int


def heat_map(rows: Iterable[LeaderboardRow]) -> HeatMap | None:
    """Of the first rows that have two mask counts or more, None where there is none."""
    usable = [row for row in rows if len(_by_masks(row)) > 1]
    if not usable:
        return None
    tasks = tuple(sorted({task for row in usable for task in next(iter(_by_masks(row).values()))}))
    shown = usable[:_MOST_ROWS]
    return HeatMap(tasks, tuple((row, _cells(row, tasks)) for row in shown), len(usable) - len(shown))


def compared_numbers(row: LeaderboardRow) -> str:
    """JSON of accuracies in percent by mask count and, in the order of their names, task; "" where there are none."""
    numbers = {n: [round(100 * of_task[task], 2) for task in sorted(of_task)] for n, of_task in _by_masks(row).items()}
    return json.dumps(numbers, separators=(",", ":")) if numbers else ""


def task_names_of(rows: Iterable[LeaderboardRow]) -> list[str]:
    """The tasks whose accuracies `compared_numbers` has, in its order."""
    return sorted({task for row in rows for of_task in _by_masks(row).values() for task in of_task})


def _by_masks(row: LeaderboardRow) -> dict[int, dict[str, float]]:
    return {n: dict(estimate.by_task) for n, estimate in row.curve("masks").items() if estimate.by_task}


def _cells(row: LeaderboardRow, tasks: Iterable[str]) -> tuple[HeatCell, ...]:
    curve = row.curve("masks")
    counts = _by_masks(row)
    best, worst = (counts[pick(counts, key=lambda n: curve[n].mean)] for pick in (max, min))
    lost = [100 * (best[task] - worst[task]) if {task} <= best.keys() & worst.keys() else None for task in tasks]
    return tuple(
        HeatCell("–", 0)
        if points is None
        else HeatCell(
            f"{round(points, 1) + 0.0:.1f}".replace("-", "−"), min(max(round(points / _POINTS_PER_SHADE), 0), _SHADES)
        )
        for points in lost
    )
