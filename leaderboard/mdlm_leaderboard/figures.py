"""The board's figures: what masks cost, accuracy against speed, and the suite's curves as in the paper's figures."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mdlm_leaderboard.board import ONE_STEP, Board, Curve, Row, Section, loss
from mdlm_leaderboard.experiments import BY_NAME, NO_MASKS, Series
from mdlm_leaderboard.findings import mask_lines, short_name
from mdlm_leaderboard.scores import CHANCE, USUAL_WORDING
from mdlm_lm_eval.results.figure_style import COLOURS, COLUMN_WIDTH, MARKERS, figure_style, on_dark, save_figure

_GREY = "#767676"
_DASHES = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)))
_LOG_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_MOST_PANELS, _MOST_MODELS = 8, 7
_LEAST_SPAN = 10  # percentage points: less would blow up noise
_LABEL = 30  # characters
_LINE_HEIGHT = 0.06  # of a label beside the figure of masks, as a share of its axis


@dataclass(frozen=True)
class Line:
    """A curve in a panel. Its colour is that of `colour` in the whole figure, its dashes those of `dash`."""

    panel: str
    colour: str
    dash: str
    curve: Curve


@dataclass(frozen=True)
class Chart:
    """What a figure of one section shows. `stem` is its file without ending; `paper` is the paper's figure, or 0."""

    stem: str
    section: str
    caption: str
    x_label: str
    is_log: bool
    lines: tuple[Line, ...]
    paper: int

    @property
    def dark_stem(self) -> str:
        """The file for dark mode."""
        folder, _, name = self.stem.rpartition("/")
        return f"{folder}/dark/{name}"

    @property
    def described(self) -> str:
        """The figure in words, for those who cannot see it."""
        return f"{self.caption} Lines: {'; '.join(dict.fromkeys(_label(line, self.lines) for line in self.lines))}."


Kind = tuple[str, int, str, str, Callable[[Section], Iterable[Line]]]


def _one_step(section: Section, experiment: str) -> Iterator[tuple[Row, Series, Curve]]:
    """Every curve of the experiment that was decoded in one step."""
    rows = (row for row in section.rows if row.who.steps in ONE_STEP)
    return ((row, series, curve) for row in rows for series, curve in row.curves_of(experiment))


def _plain(experiment: str, only: str | None = None) -> Callable[[Section], Iterable[Line]]:
    words = BY_NAME[experiment].series_words
    return lambda section: [
        Line("", row.who.model, words(series) if series and only is None else "", curve)
        for row, series, curve in _one_step(section, experiment)
        if not row.who.adapter and only in (None, series)
    ]


def _by_question(section: Section) -> Iterable[Line]:
    lines = [line for line in _plain("positions")(section) if len(line.curve) > 1]
    several = len({line.dash for line in lines}) > 1
    return [Line(line.dash, line.colour, "", line.curve) for line in lines] if several else []


def _dots(section: Section) -> Iterable[Line]:
    rows = [row for row, _, dots in _one_step(section, "dots") if not row.who.adapter and len(dots) > 1]
    return [Line("", row.who.model, name, row.curve(name)) for row in rows for name in ("masks", "dots")]


def _unmasking(section: Section) -> Iterable[Line]:
    rows = [row for row in section.rows if not row.who.adapter and row.curve("masks")]
    several = {model for model, n in Counter(row.who.model for row in rows).items() if n > 1}
    return [Line(row.who.model, row.shown, "", row.curve("masks")) for row in rows if row.who.model in several]


def _adapters(section: Section) -> Iterable[Line]:
    found = [(row.who, curve) for row, _, curve in _one_step(section, "masks")]
    adapted = {who.model for who, _ in found if who.adapter}
    return [Line(who.model, who.recipe or who.model, "", curve) for who, curve in found if who.model in adapted]


def _positions_by_masks(section: Section) -> Iterable[Line]:
    return [
        Line(" + ".join(filter(None, (row.who.model, row.who.recipe))), f"n = {series}", "", curve)
        for row, series, curve in _one_step(section, "positions_by_masks")
    ]


# Name, the paper's figure, caption, the experiment of its axis, its lines. One step unless the caption says otherwise.
KINDS: tuple[Kind, ...] = (
    ("position", 1, "Position of the relevant block, question right.", "positions", _plain("positions", "right")),
    ("position-by-question", 2, "Positions of relevant block and question.", "positions", _by_question),
    ("masks", 4, "Appended masks.", "masks", _plain("masks")),
    ("distractors", 5, "Distractor examples; n is the number of masks.", "distractors", _plain("distractors")),
    ("dots", 6, "Appended dots (after a fixed slot) or masks (open-ended).", "dots", _dots),
    ("unmasking", 7, "Appended masks and the order of unmasking, in several steps too.", "masks", _unmasking),
    ("position-by-masks", 8, "Position of the relevant block; n masks.", "positions_by_masks", _positions_by_masks),
    ("masks-adapters", 9, "Appended masks, with and without adapters.", "masks", _adapters),
    ("relevant", 0, "Relevant examples; n is the number of masks.", "relevant", _plain("relevant")),
)


def charts_of(board: Board) -> list[Chart]:
    """Every chart for which a section of the suite has curves of two points or more; settings never share one.

    Other wordings and draws of the same questions have none: their table is `Wordings`.
    """
    charts = []
    suite = [one for one in board.sections if one.is_suite]
    usual = [one for one in suite if replace(one.setting, **USUAL_WORDING) == one.setting]
    for n, section in enumerate(usual or suite):
        slug = "-".join(re.findall(r"[a-z0-9]+", section.title.lower()))[:60]
        points: Counter[str] = Counter()
        for row in section.rows:
            points[row.who.model] += sum(map(len, row.curves.values()))
        shown = {model for model, _ in points.most_common(_MOST_MODELS)}
        one = replace(section, rows=tuple(row for row in section.rows if row.who.model in shown))
        for name, paper, caption, experiment, lines_of in KINDS:
            lines = [line for line in lines_of(one) if line.curve]
            panels = list(dict.fromkeys(line.panel for line in lines))[:_MOST_PANELS]
            if any(len(line.curve) > 1 for line in lines):
                caption = f"Accuracy by {caption[0].lower()}{caption[1:]}"
                axis = BY_NAME[experiment]
                kept = tuple(line for line in lines if line.panel in panels)
                stem = f"figures/{n + 1}-{slug}/{name}" if n else f"figures/{name}"
                charts.append(Chart(stem, section.title, caption, axis.x_label, experiment == "masks", kept, paper))
    return charts


@figure_style()
def draw_charts(charts: Iterable[Chart], output: Path, of_names: Mapping[str, str]) -> None:
    """Writes every chart below `output` as SVG, PNG and dark SVG, in the colours of models and recipes."""
    for chart in charts:
        light, _ = save_figure(_drawn(chart, of_names), output / chart.stem)
        write_dark(light, output / f"{chart.dark_stem}.svg")


def write_dark(light: Path, dark: Path) -> None:
    """The same figure for dark mode."""
    dark.parent.mkdir(parents=True, exist_ok=True)
    dark.write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")


def _label(line: Line, lines: Sequence[Line]) -> str:
    """The parts in which the lines differ."""
    parts = [(line.panel, "panel"), (line.colour, "colour"), (line.dash, "dash")]
    told = [short_name(text) for text, name in parts if text and len({getattr(one, name) for one in lines}) > 1]
    return ", ".join(told) or short_name(line.colour)


def _drawn(chart: Chart, of_names: Mapping[str, str]) -> Figure:
    panels, colours, dashes = (
        list(dict.fromkeys(getattr(one, name) for one in chart.lines)) for name in ("panel", "colour", "dash")
    )
    looks: dict[tuple[str, str], dict[str, Any]] = {
        (line.colour, line.dash): {
            "color": of_names.get(line.colour, COLOURS[colours.index(line.colour) % len(COLOURS)]),
            "marker": MARKERS[colours.index(line.colour) % len(MARKERS)],
            "linestyle": _DASHES[dashes.index(line.dash) % len(_DASHES)],
        }
        for line in chart.lines
    }
    keys = [Line("", *key, {}) for key in looks]
    handles = [Line2D([], [], label=_clipped(_label(key, keys), 48), **looks[key.colour, key.dash]) for key in keys]
    low, high = _limits([100 * one.mean for line in chart.lines for one in line.curve.values()])
    if low < CHANCE < high:
        handles.append(Line2D([], [], color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)), label="chance"))
    width = min(len(panels), 3)
    height = math.ceil(len(panels) / width)
    columns = max(1, min(len(handles), 66 // (max(len(str(one.get_label())) for one in handles) + 8)))
    inches = (0.2 + 1.6 * height) + 0.15 * math.ceil(len(handles) / columns)
    figure = Figure(figsize=(COLUMN_WIDTH * (1 if width < 3 else 1.4), inches), layout="constrained")
    grid = list(figure.subplots(height, width, sharex=True, sharey=True, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        for line in (line for line in chart.lines if line.panel == panel):
            _draw_line(axes, line.curve, looks[line.colour, line.dash], is_log=chart.is_log)
        if low < CHANCE < high:
            axes.axhline(CHANCE, color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.set_title(_clipped(short_name(panel), 52 // width), pad=3)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
        grid[len(panels) - width].tick_params(labelbottom=True)
    grid[0].set_ylim(low, high)
    grid[0].yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    counts = sorted({x for line in chart.lines for x in line.curve})
    if chart.is_log:
        _log_axis(grid[0], [n for n in counts if n != NO_MASKS] or [1, 200], is_crowded=len(panels) > 1)
    else:
        grid[0].xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    figure.supxlabel(chart.x_label)
    figure.supylabel("accuracy (%)")
    spacing: dict[str, Any] = {"frameon": False, "handlelength": 2.6, "columnspacing": 1.0}
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, **spacing)
    return figure


def _draw_line(axes: Axes, curve: Curve, look: dict[str, Any], *, is_log: bool = False) -> None:
    """A curve, or the level of a model without masks along an axis of masks."""
    if is_log and NO_MASKS in curve:
        axes.axhline(100 * curve[NO_MASKS].mean, **{**look, "marker": ""})
        return
    axes.plot(list(curve), [100 * one.mean for one in curve.values()], **look)


def _limits(percents: Sequence[float]) -> tuple[float, float]:
    """Bounds of the axis of accuracies."""
    low, high = min(percents), max(percents)
    margin = max(0.06 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return max(low - margin, -1), min(high + margin, 101)


def _log_axis(axes: Axes, counts: Sequence[int], *, is_crowded: bool = False) -> None:
    axes.set_xscale("log")
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    ticks = [tick for tick in _LOG_TICKS if counts[0] <= tick <= counts[-1]] or list(counts)
    axes.xaxis.set_major_locator(FixedLocator([t for t in ticks if str(t)[0] == "1"] if is_crowded else ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def write_masks(section: Section, folder: Path, colours: Mapping[str, str]) -> None:
    """What masks cost, for the page: `masks-light.svg`, `-dark`, and both `-narrow-` for phones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in (("masks", (7.4, 3.2)), ("masks-narrow", (3.7, 3.4))):
        light = folder / f"{name}-light.svg"
        with figure_style(font_size=8, axes_titlesize=9, axes_labelsize=8, xtick_labelsize=8, ytick_labelsize=8):
            figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
            _draw_masks(figure.subplots(), section, colours, is_narrow=name == "masks-narrow")
            figure.savefig(light, metadata={"Date": None}, transparent=True)
        write_dark(light, folder / f"{name}-dark.svg")


def _draw_masks(axes: Axes, section: Section, colours: Mapping[str, str], *, is_narrow: bool) -> None:
    """A line per checkpoint with its loss at the end; seeds of an adapter are thin lines."""
    rows = mask_lines(section)
    few, most = section.pair
    labels, ends = [], []
    for row in rows:
        colour = colours[row.who.recipe or row.who.model]
        for seed in row.seeds:
            _draw_line(axes, seed.curve("masks"), {"color": colour, "linewidth": 0.6, "alpha": 0.5})
        curve = row.curve("masks")
        _draw_line(axes, curve, {"color": colour, "marker": "o", "linewidth": 1.8})
        found = loss(row, section.pair)
        assert found
        name = row.who.recipe or short_name(row.who.model)
        seeds = f" ({len(row.seeds)} seeds)" if row.seeds else ""
        chance = "" if found.is_significant else ",\nnot significant"
        labels.append("\n".join([*wrap(_clipped(name, 2 * _LABEL) + seeds, _LABEL), f"loss {found.in_words}{chance}"]))
        ends.append((100 * curve[most].mean, colour))
    _log_axis(axes, sorted({n for row in rows for n in row.curve("masks")}), is_crowded=is_narrow)
    percents = [100 * one.mean for row in rows for own in (row, *row.seeds) for one in own.curve("masks").values()]
    lowest, highest = min(percents), max(percents)
    span = max(30, 1.2 * (highest - lowest))
    sizes = [span * _LINE_HEIGHT * (label.count("\n") + 1) for label in labels]
    heights = _spread([height for height, _ in ends], sizes)
    top = min(max(highest, *heights) + span / 12, 102)
    axes.set_ylim(min(lowest - span / 12, min(heights) - span / 12, top - span), top)
    for label, height, (_, colour) in zip(labels, heights, ends, strict=True):
        look: dict[str, Any] = {"color": colour, "va": "center", "annotation_clip": False}
        axes.annotate(label, (most, height), (8, 0), textcoords="offset points", **look)
    axes.set_xlabel("number of appended masks")
    axes.set_ylabel("accuracy (%)")
    title = f"{short_name(rows[0].who.model)}\n" if any(row.who.adapter for row in rows) else ""
    axes.set_title(f"{title}loss: points from {few} to {most} masks", loc="left")


def _spread(heights: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Labels' heights, moved apart so that none touches another; the order stays."""
    order = sorted(range(len(heights)), key=lambda n: -heights[n])
    spread = dict(enumerate(heights))
    placed: list[int] = []
    for n in order:
        if placed:
            above = placed[-1]
            spread[n] = min(heights[n], spread[above] - (sizes[above] + sizes[n]) / 2)
        placed.append(n)
    shift = sum(heights[n] - spread[n] for n in order) / len(order)  # back to the middle
    return [spread[n] + shift for n in range(len(heights))]


def _clipped(text: str, length: int) -> str:
    """At most `length` characters: what `text` begins and ends with."""
    return text if len(text) <= length else f"{text[: length - length // 2 - 1]}…{text[-(length // 2) :]}"
