"""The parts of a figure: lines in panels, and how rows become them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.experiments import BY_NAME
from mdlm_leaderboard.rows import AUTOREGRESSIVE, ONE_STEP, Curve, LeaderboardRow

MAX_PANELS = 8
MAX_LINES_PER_MODEL = 8


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
