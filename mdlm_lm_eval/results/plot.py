"""Figures of a DataFrame that `mdlm_lm_eval.results.load` returned: accuracy by masks, and accuracy against speed."""

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_lm_eval.options import approximate_caches
from mdlm_lm_eval.results.figure_style import COLOURS, MARKERS, figure_style
from mdlm_lm_eval.results.frame import benchmarks
from mdlm_lm_eval.results.parallelism import frontier as on_frontier

_COSTS = {"tokens_per_pass": "tokens per forward pass", "seconds": "seconds per question"}
_WHO = ["model", "adapter", "setting_without_masks"]
_MOST_PANELS, _MOST_LINES, _MOST_BANDS = 4, 7, 3


class NothingToDrawWarning(UserWarning):
    """Why there is no figure."""


class Chart(Figure):
    """A figure that notebooks show, also without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def masks(frame: pd.DataFrame) -> Figure | None:
    """Score by the number of masks, a panel per benchmark and a line per setting.

    Bands are the 95% intervals `low` to `high`; more than three lines have none. None, with a NothingToDrawWarning,
    where mask counts do not differ.
    """
    found = benchmarks(frame).dropna(subset=["masks"])
    counts = found.groupby(["benchmark", *_WHO], dropna=False)["masks"].transform("nunique")
    figure = _panels(found[counts > 1], _draw_masks, "number of masks")
    if figure is None:
        _say_nothing_to_draw("no two results of a setting differ in their number of masks")
    return figure


def frontier(frame: pd.DataFrame, cost: str | None = None) -> Figure | None:
    """Score against speed, a panel per benchmark.

    `cost` is `tokens_per_pass` or `seconds` (per question); by default tokens per forward pass, or seconds where these
    do not differ, as with caches. A line joins the settings of a checkpoint that no other beats in both; approximate
    caches have a line of their own. None, with a NothingToDrawWarning, where no two settings differ in speed.
    """
    for name in _COSTS if cost is None else (cost,):
        found = benchmarks(frame).dropna(subset=[name])
        speeds = found.groupby("benchmark")[name].transform("nunique")
        if figure := _panels(found[speeds > 1], partial(_draw_frontier, cost=name), _COSTS[name]):
            return figure
    _say_nothing_to_draw(f"no two settings differ in {_COSTS[cost] if cost else 'speed'}")
    return None


def who(row: pd.Series, frame: pd.DataFrame, columns: tuple[str, ...]) -> str:
    """The parts of a row's identity in which the rows of `frame` differ."""
    parts = [
        {*filter(None, ", ".join(map(str, one.dropna())).split(", "))} for _, one in frame[list(columns)].iterrows()
    ]
    shared = set.intersection(*parts)
    told = [part for name in columns if pd.notna(row[name]) for part in str(row[name]).split(", ")]
    return ", ".join(part for part in told if part not in shared) or "defaults"


def _say_nothing_to_draw(reason: str) -> None:
    warnings.warn(f"nothing to draw: {reason}", NothingToDrawWarning, stacklevel=3)


@figure_style()
def _panels(found: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], label: str) -> Figure | None:
    groups = list(found.groupby("benchmark", sort=False))[:_MOST_PANELS]
    if not groups:
        return None
    figure = Chart(figsize=(3.6 * len(groups) + 0.4, 2.8), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(groups), squeeze=False).flat, groups, strict=True):
        draw(axes, rows)
        axes.set_title(name)
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy (%)" if rows["is_accuracy"].all() else rows["metric"].iloc[0])
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.18))
    entries = max(len(axes.get_legend_handles_labels()[0]) for axes in figure.axes)
    figure.set_figheight(2.8 + (0.15 * entries if entries > 1 else 0))
    return figure


def _draw_masks(axes: Axes, rows: pd.DataFrame) -> None:
    lines = list(rows.groupby(_WHO, dropna=False, sort=False))[:_MOST_LINES]
    for (_, line), colour, marker in zip(lines, COLOURS, MARKERS, strict=False):
        line = line.sort_values("masks")
        axes.plot(line["masks"], line["score"], color=colour, marker=marker, label=who(line.iloc[0], rows, tuple(_WHO)))
        if len(lines) <= _MOST_BANDS:
            axes.fill_between(line["masks"], line["low"], line["high"], color=colour, alpha=0.14, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(rows["masks"].unique())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_frontier(axes: Axes, rows: pd.DataFrame, cost: str) -> None:
    sign = -1 if cost == "seconds" else 1
    exact = ~rows["cache"].isin(approximate_caches()) if "cache" in rows else rows["score"].notna()
    for _, own in rows.groupby([rows["model"], rows["adapter"], exact], dropna=False, sort=False):
        points = list(zip(own[cost], own["score"], strict=True))
        on = on_frontier([(sign * x, y) for x, y in points])
        best = sorted(point for point, is_on in zip(points, on, strict=True) if is_on)
        axes.plot(*zip(*best, strict=True), color="#8a8a8a", linewidth=0.9, zorder=1)
    for n, (_, row) in enumerate(rows.iterrows()):
        look: dict[str, Any] = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n // len(COLOURS) % len(MARKERS)]}
        half = None if pd.isna(row["high"]) else row["high"] - row["score"]
        label = who(row, rows, ("model", "adapter", "setting")) if n < _MOST_LINES * 2 else None
        axes.errorbar(row[cost], row["score"], yerr=half, linestyle="", elinewidth=0.6, label=label, **look)
