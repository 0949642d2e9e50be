"""The tables of a row's details: its numbers in each experiment, with bands of their own."""

from dataclasses import dataclass

from mdlm_leaderboard.experiments import EXPERIMENTS, drop
from mdlm_leaderboard.page.columns import interval_cell
from mdlm_leaderboard.ranking import TableCell, percent
from mdlm_leaderboard.rows import Estimate, LeaderboardRow


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
            cells = [[_accuracy_cell(curve.get(x)) for x in xs] for curve in curves.values()]
            gaps = [interval_cell(drop(curve)) for curve in curves.values()]
            if any(gap.band for gap in gaps):
                heads.append("best minus worst")
                cells = [[*line, gap] for line, gap in zip(cells, gaps, strict=True)]
            lines = tuple(zip(words, map(tuple, cells), strict=True))
            tables.append(CurveTable(experiment.title.partition(" (")[0], experiment.x_label, tuple(heads), lines))
    return tables


def _accuracy_cell(estimate: Estimate | None) -> TableCell:
    """An accuracy in percent with its band."""
    if estimate is None:
        return TableCell("–")
    band = "" if estimate.high is None else percent(estimate.high - estimate.mean)
    return TableCell(percent(estimate.mean), band, estimate.mean)
