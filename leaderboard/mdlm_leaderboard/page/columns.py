"""The columns of a section's table, and what stands in their cells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.experiments import EXPERIMENTS, Experiment, Summary, summary_of
from mdlm_leaderboard.rows import Estimate, LeaderboardRow, Series
from mdlm_lm_eval.results.statistics import Interval

# Groups of columns that are not shown at first.
_SERIES_TO_ASK_FOR = ("left", "middle")


@dataclass(frozen=True)
class TableCell:
    """`text` is shown, `band` after it, and `value` sorts; the text "–" stands for no value."""

    text: str
    band: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """`head` is short; `explanation` says it in words, "" where the head does."""

    head: str
    explanation: str
    is_number: bool
    cell: Callable[[LeaderboardRow], TableCell]


@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns below one head, "" where none is needed; readers switch groups on and off by name."""

    name: str
    head: str
    columns: tuple[Column, ...]
    is_shown: bool = True


def column_groups(rows: Sequence[LeaderboardRow]) -> list[ColumnGroup]:
    """The columns in which any of the rows has a value: those of every experiment, then the source."""
    groups = [group for experiment in EXPERIMENTS if experiment.is_wide for group in _groups(experiment, rows)]
    source = Column("source", "", False, lambda row: TableCell(row.citation or "–"))
    return [*groups, *([ColumnGroup("source", "", (source,))] if any(row.citation for row in rows) else [])]


def percent(share: float) -> str:
    """A share as percent, without a sign, as everywhere on the page."""
    return f"{100 * share:.1f}"


def cell_of(estimate: Estimate | None) -> TableCell:
    """An accuracy in percent with its band."""
    if estimate is None:
        return TableCell("–")
    band = "" if estimate.high is None else percent(estimate.high - estimate.mean)
    return TableCell(percent(estimate.mean), band, estimate.mean)


def _groups(experiment: Experiment, rows: Sequence[LeaderboardRow]) -> Iterator[ColumnGroup]:
    measured = {series for row in rows for series in experiment.curves(row)}
    stated = {summary.series for summary in experiment.summaries for row in rows if summary.name in row.stated}
    for series in sorted(measured | stated, key=str, reverse=True):  # of the question's places, the right one first
        columns = [*_points(experiment, series, rows), *_summaries(experiment, series)]
        used = tuple(column for column in columns if any(column.cell(row).text != "–" for row in rows))
        if used:
            words = [experiment.title.partition(" (")[0], *([experiment.series_words(series)] if series else [])]
            name = "-".join([experiment.name, *([str(series)] if series else [])])
            yield ColumnGroup(name, ", ".join(words), used, series not in _SERIES_TO_ASK_FOR)


def _points(experiment: Experiment, series: Series, rows: Sequence[LeaderboardRow]) -> Iterator[Column]:
    for x in sorted({x for row in rows for x in row.curve(experiment.name, series)}):
        yield Column(*experiment.head(x), True, _point(experiment, series, x))


def _point(experiment: Experiment, series: Series, x: object) -> Callable[[LeaderboardRow], TableCell]:
    return lambda row: cell_of(row.curve(experiment.name, series).get(x))


def _summaries(experiment: Experiment, series: Series) -> Iterator[Column]:
    for summary in experiment.summaries:
        if summary.series == series:
            yield Column(summary.head, summary.words, True, _summary(experiment, summary))


def _summary(experiment: Experiment, summary: Summary) -> Callable[[LeaderboardRow], TableCell]:
    return lambda row: _interval(summary_of(row, experiment, summary))


def _interval(interval: Interval | None) -> TableCell:
    if interval is None:
        return TableCell("–")
    band = "" if interval.half_width is None else f"{interval.half_width:.1f}"
    return TableCell(f"{interval.mean:.1f}", band, interval.mean)


@dataclass(frozen=True)
class CurveTable:
    """A row's numbers in one experiment. `lines` have the series in words and a cell for each of `heads`."""

    title: str
    x_label: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, tuple[TableCell, ...]], ...]


def curve_tables(row: LeaderboardRow) -> list[CurveTable]:
    """Of every experiment that has curves, those over two points or more."""
    tables = []
    for experiment in EXPERIMENTS:
        curves = experiment.curves(row)
        xs = sorted({x for curve in curves.values() for x in curve})
        if len(xs) > 1 and experiment.name != "benchmarks":
            lines = tuple(
                (experiment.series_words(series) if series else "", tuple(cell_of(curve.get(x)) for x in xs))
                for series, curve in curves.items()
            )
            heads = tuple(experiment.head(x)[0] for x in xs)
            tables.append(CurveTable(experiment.title.partition(" (")[0], experiment.x_label, heads, lines))
    return tables
