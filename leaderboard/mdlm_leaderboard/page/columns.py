"""The columns of a section's table, and what stands in their cells."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Curve, Estimate, Row

# Groups of columns that readers switch on and off, with their heads.
GROUPS: Mapping[str, str] = {
    "masks": "Appended masks",
    "right": "Block position, question right",
    "middle": "Block position, question middle",
    "left": "Block position, question left",
    "dots": "Appended dots",
    "benchmarks": "Standard benchmarks",
}
_SOURCE = "source"  # stands wherever a row cites one


@dataclass(frozen=True)
class Cell:
    """`text` is shown, `band` after it, and `value` sorts; the text "–" stands for no value."""

    text: str
    band: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """`head` is short; `explanation` says it in words, "" where the head does."""

    group: str
    head: str
    explanation: str
    is_number: bool
    cell: Callable[[Row], Cell]


@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns below one head, "" where none is needed."""

    name: str
    head: str
    columns: tuple[Column, ...]


def column_groups(rows: Sequence[Row]) -> list[ColumnGroup]:
    """The columns in which any of the rows has a value."""
    columns = [
        *_curve("masks", rows, lambda row: row.masks, _masks_head),
        _number("masks", "drop", "largest minus smallest accuracy, in percentage points", lambda r: r.drop_points),
        _number("masks", "degr.", "degradation: the drop in percent of the largest", lambda r: r.degradation_percent),
        *_places(rows),
        *_curve("dots", rows, lambda row: row.dots, lambda n: (str(n), f"{n} dots after the answer")),
        _number("dots", "drop", "largest minus smallest accuracy, in percentage points", lambda r: r.dots_drop_points),
        *_benchmarks(rows),
        Column(_SOURCE, "source", "", False, lambda row: Cell(row.citation or "–")),
    ]
    used = [column for column in columns if any(column.cell(row).text != "–" for row in rows)]
    groups = {name: tuple(column for column in used if column.group == name) for name in (*GROUPS, _SOURCE)}
    return [ColumnGroup(name, GROUPS.get(name, ""), columns) for name, columns in groups.items() if columns]


def percent(share: float) -> str:
    """A share as percent, without a sign, as everywhere on the page."""
    return f"{100 * share:.1f}"


def _places(rows: Sequence[Row]) -> Iterable[Column]:
    for place in ("right", "middle", "left"):
        yield from _curve(
            place,
            rows,
            lambda row, place=place: row.positions.get(place, {}),  # type: ignore[misc]
            lambda x: (str(x), f"relevant block after {x} distractor examples"),
        )
        if place == "right":
            yield _number(
                place, "gap", "locality gap: best minus worst position, in points", lambda r: r.locality_gap_points
            )


def _masks_head(n: int) -> tuple[str, str]:
    if n == NO_MASKS:
        return "AR", f"{AUTOREGRESSIVE}: no masks"
    return str(n), f"{n} appended mask{'' if n == 1 else 's'}"


def _curve(
    group: str, rows: Iterable[Row], curve: Callable[[Row], Curve], head: Callable[[int], tuple[str, str]]
) -> Iterable[Column]:
    for x in sorted({x for row in rows for x in curve(row)}):
        yield Column(group, *head(x), True, lambda row, x=x: _estimate(curve(row).get(x)))  # type: ignore[misc]


def _benchmarks(rows: Iterable[Row]) -> Iterable[Column]:
    for name in sorted({name for row in rows for name in row.benchmarks}):
        task, _, conditions = name.partition(" (")
        cell = lambda row, name=name: _estimate(row.benchmarks.get(name))  # noqa: E731
        yield Column("benchmarks", task, conditions.removesuffix(")"), True, cell)


def _number(group: str, head: str, explanation: str, value: Callable[[Row], float | None]) -> Column:
    return Column(group, head, explanation, True, lambda row: _points(value(row)))


def _points(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{value:.1f}", value=value)


def _estimate(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("–")
    band = "" if estimate.high is None else percent(estimate.high - estimate.mean)
    return Cell(percent(estimate.mean), band, estimate.mean)
