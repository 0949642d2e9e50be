"""Draws planned figures with matplotlib, as SVG and PNG."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mdlm_leaderboard.figures.legend import looks_of, n_columns
from mdlm_leaderboard.figures.plan import Figure, figures_of, model_order
from mdlm_leaderboard.figures.style import CHANCE, clipped, short_names
from mdlm_leaderboard.rows import NO_MASKS, Board, Curve
from mdlm_lm_eval.results.figure_style import COLUMN_WIDTH, figure_style, on_dark, save_figure

_LOG_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_TITLE_LENGTH = 26  # characters across half a column
_LEAST_SPAN = 10  # percentage points: less would blow up noise


@figure_style()
def draw_figures(board: Board, output: Path) -> list[Path]:
    """Writes every figure of the board below `output` as SVG, PNG and dark SVG, and returns the files."""
    models = model_order(board)
    names = short_names(models)
    paths: list[Path] = []
    for figure in figures_of(board):
        light, png = save_figure(_drawn(figure, models, names), output / figure.stem)
        dark = output / f"{figure.dark_stem}.svg"
        dark.parent.mkdir(exist_ok=True)
        dark.write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")
        paths += [light, png, dark]
    return paths


def _drawn(figure: Figure, models: Sequence[str], names: Mapping[str, str]) -> Canvas:
    looks = looks_of(figure, models, names)
    handles = looks.handles()
    low, high = _limits(figure)
    if low < CHANCE < high:
        handles.append(Line2D([], [], color="#767676", linewidth=0.8, linestyle=(0, (1, 2)), label="chance"))
    width = 3 if figure.kind.paper == 2 else min(len(figure.panels), 2)
    height = math.ceil(len(figure.panels) / width)
    legend_height = 0.15 * math.ceil(len(handles) / n_columns(handles)) if handles else 0
    second_line = 0.12 if any(panel.model and panel.detail for panel in figure.panels) else 0
    inches = (1.75 if width == 1 else 0.2 + (1.35 + second_line) * height) + legend_height
    canvas = Canvas(figsize=(COLUMN_WIDTH, inches), layout="constrained")
    grid = list(canvas.subplots(height, width, sharex=True, sharey=True, squeeze=False).flat)
    for axes, panel in zip(grid, figure.panels, strict=False):
        for line in panel.lines:
            _draw_line(
                axes,
                line.curve,
                looks.style(line),
                is_level=figure.kind.experiment.x_scale == "log" and NO_MASKS in line.curve,
            )
        if low < CHANCE < high:
            axes.axhline(CHANCE, color="#767676", linewidth=0.8, linestyle=(0, (1, 2)))
        title = filter(None, (names.get(panel.model, ""), panel.detail))
        axes.set_title("\n".join(clipped(part, _TITLE_LENGTH * (2 if width == 1 else 1)) for part in title), pad=3)
    for axes in grid[len(figure.panels) :]:
        axes.set_visible(False)
        grid[len(figure.panels) - width].tick_params(labelbottom=True)
    grid[0].set_ylim(low, high)
    grid[0].yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    _set_x(grid[0], figure)
    canvas.supxlabel(figure.kind.experiment.x_label)
    canvas.supylabel("accuracy (%)")
    if handles:
        canvas.legend(
            handles=handles,
            loc="outside upper center",
            ncols=n_columns(handles),
            frameon=False,
            handlelength=2.6,
            columnspacing=1.0,
            borderaxespad=0.1,
            labelspacing=0.3,
        )
    return canvas


def _draw_line(axes: Axes, curve: Curve, style: Mapping[str, Any], *, is_level: bool) -> None:
    """A curve with its band, or one level all along."""
    if is_level:
        level = curve[NO_MASKS]
        if level.low is not None and level.high is not None:
            axes.axhspan(100 * level.low, 100 * level.high, color=style["color"], alpha=0.1, linewidth=0)
        axes.axhline(100 * level.mean, **{**style, "marker": ""})
        return
    xs = sorted(curve)
    banded = [(x, 100 * e.low, 100 * e.high) for x in xs if (e := curve[x]).low is not None and e.high is not None]
    across, lows, highs = ([part[n] for part in banded] for n in range(3))
    axes.fill_between(across, lows, highs, color=style["color"], alpha=0.14, linewidth=0)
    if len(banded) == 1:
        axes.vlines(across, lows, highs, color=style["color"], linewidth=0.8)
    axes.plot(xs, [100 * curve[x].mean for x in xs], **style)


def _limits(figure: Figure) -> tuple[float, float]:
    """Bounds of the axis of accuracies, in percent, around all points and bands of all panels."""
    estimates = [estimate for panel in figure.panels for line in panel.lines for estimate in line.curve.values()]
    low = 100 * min(e.mean if e.low is None else e.low for e in estimates)
    high = 100 * max(e.mean if e.high is None else e.high for e in estimates)
    margin = max(0.04 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return max(low - margin, -1), min(high + margin, 101)


def _set_x(axes: Axes, figure: Figure) -> None:
    xs = sorted({x for panel in figure.panels for line in panel.lines for x in line.curve})
    if figure.kind.experiment.x_scale == "linear":
        is_whole = all(isinstance(x, int) for x in xs)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=is_whole))
        return
    counts = [x for x in xs if x != NO_MASKS] or [1, 200]
    axes.set_xscale("log")
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    ticks = [tick for tick in _LOG_TICKS if counts[0] <= tick <= counts[-1]] or counts
    if len(figure.panels) > 1 and len(ticks) > 4:
        ticks = [tick for tick in ticks if str(tick).startswith("1")]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
