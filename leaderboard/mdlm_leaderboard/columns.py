"""The columns of the suite's tables: a number per row, in percent or points."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mdlm_leaderboard.rows import Curve, Row
from mdlm_leaderboard.scores import BY_NAME, Series
from mdlm_lm_eval.results.statistics import Interval, Score, difference


@dataclass(frozen=True)
class Column:
    """A column with a number per row, in percent or points.

    `of` computes it from the row and the section's pair of mask counts. In `head` and `explanation`, "{few}" and
    "{most}" stand for these counts in words.
    """

    name: str
    head: str
    explanation: str
    of: Callable[[Row, tuple[int, int]], Interval | None]


def change(curve: Curve, first: Any, second: Any) -> Interval | None:
    """Accuracy at `first` minus that at `second`, in points, paired by set; None if there are no two such points."""
    one, other = (curve[x].score if x in curve else None for x in (first, second))
    return difference(other, one).scaled(100) if one and other and first != second else None


def loss(row: Row, pair: tuple[int, int]) -> Interval | None:
    """The loss to masks, as headline, table, figure and documents define it."""
    return change(row.curve("masks"), *pair)


def drop(curve: Curve) -> Interval | None:
    """Largest minus smallest accuracy, in points, paired by set; None for fewer than two points of the curve."""
    found = sorted((one.score for one in curve.values() if one.score), key=lambda score: score.mean)
    return difference(found[0], found[-1]).scaled(100) if len(found) > 1 else None


def point(experiment: str, series: Series, x: Any) -> Column:
    """The column of one point of an experiment."""
    words = [BY_NAME[experiment].at(x), *([BY_NAME[experiment].series_words(series)] if series != "" else [])]

    def of(row: Row, _pair: tuple[int, int]) -> Interval | None:
        found = row.curve(experiment, series).get(x)
        return found.interval if found else None

    return Column(f"{experiment}-{series}-{x}", f"{', '.join(words)} (%)", "accuracy", of)


def _at(n: int, row: Row) -> Interval | None:
    estimate = row.at_masks(n)
    return estimate.interval if estimate else None


def _ends(curve: Curve) -> Interval | None:
    return change(curve, min(curve), max(curve)) if curve else None


def _pairs(row: Row, pair: tuple[int, int]) -> Interval | None:
    one = row.curve("masks").get(pair[1])
    return None if one is None or one.pairs is None else Interval(100 * one.pairs)


def first_token_share(row: Row, n_masks: int, name: str) -> Score | None:
    """A share of the first tokens at a number of masks; None if it was not recorded."""
    one = row.curve("masks").get(n_masks)
    return one.decomposition.shares.get(name) if one and one.decomposition else None


def _share(row: Row, pair: tuple[int, int], name: str) -> Interval | None:
    share = first_token_share(row, pair[1], name)
    return share.interval.scaled(100) if share else None


COLUMNS = (
    Column("most", "at {most} (%)", "accuracy, by which rows are ranked", lambda row, pair: _at(pair[1], row)),
    Column("few", "at {few} (%)", "accuracy", lambda row, pair: _at(pair[0], row) if pair[0] < pair[1] else None),
    Column("loss", "drop, {from_} to {most} (points)", "accuracy at {few} minus that at {most}", loss),
    Column("among_labels", "among letters, {most} (%)", "before any ban", partial(_share, name="among_labels")),
    Column(
        "eos", "EOS, {most} (%)", "the likeliest token is the end of text, which is wrong", partial(_share, name="eos")
    ),
    Column("pairs", "whole sets (%)", "sets of which all three askings are right, at {most}", _pairs),
    Column("dots_loss", "drop with dots", "from the fewest to the most dots", lambda row, _: _ends(row.curve("dots"))),
    Column("gap", "locality gap", "best minus worst position", lambda row, _: drop(row.curve("positions", "right"))),
)
