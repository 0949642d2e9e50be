"""The columns of a section's table, and what stands in their cells.

One ± has one meaning in a table: in the ranked ones it is that of differences, so accuracies stand there without; with
theirs they stand in the tables of a row's details.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.experiments import EXPERIMENTS, Experiment, Summary, summary_of
from mdlm_leaderboard.ranking import Counts, TableCell, at_best, at_worst, percent
from mdlm_leaderboard.rows import LeaderboardRow, Series
from mdlm_leaderboard.seeds import seeds_of
from mdlm_lm_eval.results.statistics import Interval

OVERVIEW = "overview"
# The experiments whose summaries everybody sees; those of others stand with their points.
_RANKED = ("masks", "positions")


@dataclass(frozen=True)
class Column:
    """`head` is short; `explanation` says it in words, "" where the head does. `name` stands in links."""

    name: str
    head: str
    explanation: str
    is_number: bool
    cell: Callable[[LeaderboardRow], TableCell]


@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns below one head, "" where none is needed; readers switch groups on and off by name.

    `has_points` where some are accuracies at one point each, and not all are summaries.
    """

    name: str
    head: str
    columns: tuple[Column, ...]
    has_points: bool = False


def overview(rows: Sequence[LeaderboardRow], counts: Counts) -> ColumnGroup:
    """What ranks models: the columns that everybody sees, those of them in which any of the rows has a value.

    `counts` are the mask counts by which the rows of a table are ranked.
    """
    columns = [
        Column("best", "best accuracy (%)", "at the mask count where it is largest", True, at_best),
        Column("worst", "worst accuracy (%)", "by which rows are ranked", True, lambda row: at_worst(row, counts)),
        *(
            Column(summary.name, summary.head, summary.words, True, _summary(experiment, summary))
            for experiment in EXPERIMENTS
            if experiment.name in _RANKED
            for summary in experiment.summaries
        ),
        Column("tokens_per_pass", "tokens per pass", "the most tokens per forward pass on record", True, _speed),
    ]
    return ColumnGroup(OVERVIEW, "", _used(columns, rows))


def column_groups(rows: Sequence[LeaderboardRow]) -> list[ColumnGroup]:
    """The columns on demand in which any of the rows has a value: those of every experiment."""
    return [group for experiment in EXPERIMENTS if experiment.is_wide for group in _groups(experiment, rows)]


def _speed(row: LeaderboardRow) -> TableCell:
    curves = [curve for one in seeds_of(row) or (row,) for curve in one.series("tokens_per_forward").values()]
    recorded = [float(x) for curve in curves for x in curve]
    return TableCell(f"{max(recorded):.2f}", value=max(recorded)) if recorded else TableCell("–")


def _groups(experiment: Experiment, rows: Sequence[LeaderboardRow]) -> Iterator[ColumnGroup]:
    measured = {series for row in rows for series in row.series(experiment.name)}
    stated = {summary.series for summary in experiment.summaries for row in rows if summary.name in row.stated}
    for series in sorted(measured | stated, key=str, reverse=True):  # of the question's places, the right one first
        words = [experiment.title.partition(" (")[0], *([experiment.series_words(series)] if series else [])]
        name = "-".join([experiment.name, *([str(series)] if series else [])])
        points = list(_points(experiment, series, rows, name))
        summaries = [] if experiment.name in _RANKED else list(_summaries(experiment, series))
        if used := _used([*points, *summaries], rows):
            yield ColumnGroup(name, ", ".join(words), used, has_points=bool(points))


def _used(columns: Iterable[Column], rows: Sequence[LeaderboardRow]) -> tuple[Column, ...]:
    return tuple(column for column in columns if any(column.cell(row).text != "–" for row in rows))


def _points(experiment: Experiment, series: Series, rows: Sequence[LeaderboardRow], group: str) -> Iterator[Column]:
    for n, x in enumerate(sorted({x for row in rows for x in row.curve(experiment.name, series)})):
        yield Column(f"{group}-{n}", *experiment.head(x), True, _point(experiment, series, x))


def _point(experiment: Experiment, series: Series, x: object) -> Callable[[LeaderboardRow], TableCell]:
    def cell(row: LeaderboardRow) -> TableCell:
        estimate = row.curve(experiment.name, series).get(x)
        return TableCell(percent(estimate.mean), value=estimate.mean) if estimate else TableCell("–")

    return cell


def _summaries(experiment: Experiment, series: Series) -> Iterator[Column]:
    for summary in experiment.summaries:
        if summary.series == series:
            yield Column(summary.name, summary.head, summary.words, True, _summary(experiment, summary))


def _summary(experiment: Experiment, summary: Summary) -> Callable[[LeaderboardRow], TableCell]:
    return lambda row: interval_cell(summary_of(row, experiment, summary))


def interval_cell(interval: Interval | None) -> TableCell:
    """A mean with its band, as it is."""
    if interval is None:
        return TableCell("–")
    band = "" if interval.half_width is None else f"{interval.half_width:.1f}"
    return TableCell(f"{interval.mean:.1f}", band, interval.mean)
