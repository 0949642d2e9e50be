"""The parts of a figure: lines in panels, and how rows become them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mdlm_leaderboard.experiments import BY_NAME
from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Curve, Estimate, LeaderboardRow

MAX_PANELS = 8
MAX_LINES_PER_MODEL = 8
ONE_STEP = ("1", AUTOREGRESSIVE)


@dataclass(frozen=True)
class Line:
    """One curve. `kind` is what tells a model's lines apart in this figure; `other` the row's other settings."""

    model: str
    kind: str
    other: str
    curve: Curve


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Its title is model, where all lines are of one, and detail; a single panel needs neither."""

    model: str
    detail: str
    lines: tuple[Line, ...]


def base(rows: Iterable[LeaderboardRow]) -> list[LeaderboardRow]:
    """Models as they are, decoded in one step."""
    return [row for row in rows if row.adapter is None and row.steps in ONE_STEP]


def with_masks(curve: Curve) -> Curve:
    """Without the point of autoregressive models."""
    return {n: estimate for n, estimate in curve.items() if n != NO_MASKS}


def adapter_of(row: LeaderboardRow) -> str:
    """Its adapter's name without the seed, "" of none."""
    return re.sub(r", seed \d+$", "", row.adapter or "")


def over_seeds(curves: Sequence[Curve]) -> Curve:
    """The mean curve, where all have a point, with a band from the lowest to the highest; of one curve, itself."""
    if len(curves) == 1:
        return curves[0]
    return {x: _over_seeds([curve[x] for curve in curves]) for x in shared_points(curves)}


def shared_points(curves: Iterable[Curve]) -> list[Any]:
    """The points that all have, in order; none of no curve."""
    points = [set(curve) for curve in curves]
    return sorted(set.intersection(*points)) if points else []


def _over_seeds(seeds: Sequence[Estimate]) -> Estimate:
    means = [one.mean for one in seeds]
    tasks = seeds[0].by_task if all(one.by_task.keys() == seeds[0].by_task.keys() for one in seeds) else {}
    by_task = {task: fmean(one.by_task[task] for one in seeds) for task in tasks}
    n_questions = sum(one.n_questions for one in seeds)
    return Estimate(fmean(means), min(means), max(means), seeds[0].n_tasks, n_questions, by_task)


def by_model(rows: Sequence[LeaderboardRow]) -> Iterator[tuple[str, str, list[LeaderboardRow]]]:
    """Rows of one model and the same other settings, which are named where the model has several."""
    groups: dict[tuple[str, str], list[LeaderboardRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.other), []).append(row)
    settings = Counter(model for model, _ in groups)
    for (model, other), own in groups.items():
        yield model, other if settings[model] > 1 else "", own


def decoding(row: LeaderboardRow) -> str:
    """How a row was decoded, for a legend."""
    if row.steps == AUTOREGRESSIVE:
        return AUTOREGRESSIVE
    plural = "" if row.steps == "1" else "s"
    return f"{row.unmasking} ({row.steps} step{plural})" if row.steps.isdecimal() else f"{row.unmasking}, {row.steps}"


def of_models(row: LeaderboardRow, curve: Curve, kind: str = "") -> Line:
    """A line of a panel that several models share."""
    return Line(row.model, kind, row.other, curve)


def panel_by_masks(row: LeaderboardRow, detail: str) -> Panel:
    """One row's accuracy by block position, a line for each mask count."""
    curves = sorted(row.series("positions_by_masks").items())
    words = BY_NAME["positions_by_masks"].series_words
    lines = (Line(row.model, words(n), row.other, curve) for n, curve in curves)
    return Panel(row.model, detail, limited(lines))


def one_panel(lines: Iterable[Line]) -> list[Panel]:
    """A panel of several models, none without points."""
    panel = Panel("", "", limited(lines))
    return [panel] if panel.lines else []


def limited(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Those with points, of each model no more than there are line styles."""
    kept: list[Line] = []
    per_model: Counter[str] = Counter()
    for line in lines:
        if line.curve and per_model[line.model] < MAX_LINES_PER_MODEL:
            per_model[line.model] += 1
            kept.append(line)
    return tuple(kept)
