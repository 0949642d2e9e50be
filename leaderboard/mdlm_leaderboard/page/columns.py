"""The columns of a section's table, and what stands in their cells.

One ± has one meaning in a table: in the ranked ones it is that of differences, so accuracies stand there without; with
theirs they stand in the tables of a row's details.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.experiments import EXPERIMENTS, Experiment, Summary, drop, summary_of
from mdlm_leaderboard.figures.panels import shared_points, with_masks
from mdlm_leaderboard.page.seeds import folded, seeds_of
from mdlm_leaderboard.rows import NO_MASKS, Curve, Estimate, LeaderboardRow, Series
from mdlm_lm_eval.results.statistics import Interval

Counts = tuple[int, ...]

OVERVIEW = "overview"
# The experiments whose summaries everybody sees; those of others stand with their points.
_RANKED = ("masks", "positions")


@dataclass(frozen=True)
class TableCell:
    """`text` is shown, `band` and `note` after it, and `value` sorts; the text "–" stands for no value."""

    text: str
    band: str = ""
    value: float | None = None
    note: str = ""


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


def ranked(rows: Iterable[LeaderboardRow]) -> list[LeaderboardRow]:
    """Seeds of one recipe as one row, the largest accuracy at its worst first; those without one come last."""
    rows = folded(rows)
    counts = shared_counts(rows)
    return sorted(rows, key=lambda row: -(at_worst(row, counts).value or 0.0))


def shared_counts(rows: Iterable[LeaderboardRow]) -> Counts:
    """The mask counts that all rows with masks have."""
    return tuple(shared_points(curve for row in rows if (curve := with_masks(row.curve("masks")))))


def ranked_by(counts: Counts) -> str:
    """What ranks the rows of a table, in a sentence."""
    over = (
        f"the mask counts that all rows with masks share: {', '.join(map(str, counts))}"
        if counts
        else "each row's own mask counts, as none is common to all"
    )
    return f"Ranked by the worst accuracy over {over}."


def at_best(row: LeaderboardRow) -> TableCell:
    """The largest accuracy over the mask counts, and at how many it is."""
    return _at(row.curve("masks"), max)


def at_worst(row: LeaderboardRow, counts: Counts) -> TableCell:
    """The smallest over `counts`; over its own where it has none of them, as models without masks have."""
    curve = row.curve("masks")
    return _at({n: curve[n] for n in counts if n in curve} or curve, min)


def _at(curve: Curve, pick: Callable[..., int]) -> TableCell:
    if not curve:
        return TableCell("–")
    n = pick(curve, key=lambda x: curve[x].mean)
    note = "no masks" if n == NO_MASKS else f"at {n} mask{'s' if n > 1 else ''}"
    return TableCell(percent(curve[n].mean), value=curve[n].mean, note=note)


def _speed(row: LeaderboardRow) -> TableCell:
    curves = [curve for one in seeds_of(row) or (row,) for curve in one.series("tokens_per_forward").values()]
    recorded = [float(x) for curve in curves for x in curve]
    return TableCell(f"{max(recorded):.2f}", value=max(recorded)) if recorded else TableCell("–")


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
    return lambda row: _interval(summary_of(row, experiment, summary))


def _interval(interval: Interval | None) -> TableCell:
    if interval is None:
        return TableCell("–")
    band = "" if interval.half_width is None else f"{interval.half_width:.1f}"
    return TableCell(f"{interval.mean:.1f}", band, interval.mean)


@dataclass(frozen=True)
class CurveTable:
    """A row's numbers in one experiment. `lines` have the series in words and a cell for each of `heads`.

    Of experiments over tasks, the last cell is the curve's largest minus its smallest accuracy, paired by task.
    """

    title: str
    x_label: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, tuple[TableCell, ...]], ...]


def curve_tables(row: LeaderboardRow) -> list[CurveTable]:
    """Of every experiment that has curves, those over two points or more; of benchmarks each."""
    tables = []
    for experiment in EXPERIMENTS:
        curves = row.series(experiment.name)
        xs = sorted({x for curve in curves.values() for x in curve})
        if len(xs) > (experiment.name != "benchmarks"):
            words = [experiment.series_words(series) if series else "" for series in curves]
            heads = [str(x) if isinstance(x, str) else experiment.head(x)[0] for x in xs]
            cells = [[cell_of(curve.get(x)) for x in xs] for curve in curves.values()]
            gaps = [_interval(drop(curve)) for curve in curves.values()]
            if any(gap.band for gap in gaps):
                heads.append("best minus worst")
                cells = [[*line, gap] for line, gap in zip(cells, gaps, strict=True)]
            lines = tuple(zip(words, map(tuple, cells), strict=True))
            tables.append(CurveTable(experiment.title.partition(" (")[0], experiment.x_label, tuple(heads), lines))
    return tables
