"""Draws a folder of results, or rows of `load(folder, columns="all")`: accuracy by masks, and accuracy against speed.

A panel has only scores that share a table on the board: of the same questions, asked in the same way. All other figures
have the style of these: colours, markers, sizes.
"""

import colorsys
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from mdlm_lm_eval.options import APPROXIMATE_CACHES, OptionError
from mdlm_lm_eval.results.files import write_whole
from mdlm_lm_eval.results.frame import COSTS, benchmarks, load
from mdlm_lm_eval.results.frontier import SPEEDS, Contender, frontier_marks, measure_of_speed
from mdlm_lm_eval.results.names import without_shared
from mdlm_lm_eval.results.text import printable
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

# Okabe and Ito's palette, which colour-blind readers can distinguish. Yellow is left out, since it is too light on
# white, and black is replaced by dark grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMN_WIDTH = 3.3  # inches, of one column of a paper
PAPER, DARK_PAPER = "#ffffff", "#16181b"  # the background, in light and in dark mode

_INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_SMALL = ("font.size", "axes.titlesize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
# Any keys: matplotlib 3.11 types each name, earlier releases do not.
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib
    # Not black: SVGs do not write down black, so that `on_dark` could not replace it.
    **dict.fromkeys(_INK, "#1a1a1a"),
    **dict.fromkeys(_SMALL, 7),
    **dict.fromkeys(("axes.labelsize", "figure.labelsize", "figure.titlesize"), 7.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "savefig.dpi": 300,
    "text.parse_math": False,  # a dollar sign in a model's name is a dollar sign
    "svg.hashsalt": "mdlm-lm-eval",  # without a salt, an SVG gets other ids each time it is written
}
# No dates, so that the same numbers make the same files.
_METADATA: Mapping[str, dict[str, Any]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
# Columns that must be equal for two scores to share a table, as on the board; those of few-shot tasks may be missing.
_TABLE = ("limit", "served_by", "version", "suite_hash", "shots", *DEFAULT_SETTINGS)
# Columns that identify a checkpoint with its adapter.
_CHECKPOINT = ("model", "weights", "template", "adapter", "adapter_weights")
_WHO = [*_CHECKPOINT, "settings_without_masks"]
_MOST_PANELS, _MOST_BANDS, _MOST_NUMBERED = 4, 3, 14
_LABEL, _HALF = 48, 31  # characters of a line in a legend with one column, and with two
_TITLE = 42  # characters of a line of a panel's title
_LOG_FROM = 5  # the ratio of speeds from which the axis is logarithmic
_BESIDE = "#8a8a8a"  # the colour of settings that another beats
# The meanings of a point's marker, and of its fill.
_KEY = (
    {"o": "circles: exact decoding", "D": "diamonds: approximate caches", "*": "stars: guests"},
    {
        "hollow": "hollow: not significantly different from a neighbour",
        "": "grey: another setting of the model is as good and fast",
    },
)
_CLOSE = 0.07  # a share of an axis: points that are closer on both axes share a label


# The style of all figures


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Name -> colour, so that a name has one colour in all figures of a page."""
    return {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(dict.fromkeys(names))}


@contextmanager
def figure_style(**changes: Any) -> Iterator[None]:
    """Applies this style to figures drawn in a `with` block or a decorated function, whatever matplotlibrc says.

    `changes` are further settings of matplotlib, with "_" for ".".
    """
    changed = {name.replace("_", "."): value for name, value in changes.items()}
    with style.context(SETTINGS | changed, after_reset=True):
        yield


def log_axis(axes: Axes, ticks: Sequence[float] | None = None) -> None:
    """Makes the x axis logarithmic, with plain numbers at `ticks`, by default at 1, 2 and 5 times powers of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Writes `path` as SVG and PNG, in this order, and returns the files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in figure.findobj(Text):
        text.set_text(printable(text.get_text(), keep="\n"))  # an SVG may hold no control characters
    figure.draw_without_rendering()  # ticks depend on the layout, and the layout on the widths of ticks
    files = [path.parent / f"{path.name}{suffix}" for suffix in _METADATA]
    for file, metadata in zip(files, _METADATA.values(), strict=True):
        with matplotlib.rc_context({name: SETTINGS[name] for name in ("svg.hashsalt", "savefig.dpi")}):
            figure.savefig(file, metadata=metadata)
    return files


def save_light_and_dark(figure: Figure, path: Path) -> None:
    """Writes `path` as SVG and PNG, and an SVG for dark mode into the folder `dark` beside them."""
    light, _ = save_figure(figure, path)
    write_whole(path.parent / "dark" / light.name, on_dark(light.read_text(encoding="utf-8")))


def on_dark(svg: str) -> str:
    """An SVG that matplotlib drew on white, recoloured for dark mode: lighter hues, and dark greys become light."""
    return re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: _lit(found[0]), svg)


def _lit(colour: str) -> str:
    if colour == PAPER:
        return DARK_PAPER
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    lightness = 0.9 - 0.75 * lightness if saturation < 0.1 else 0.48 + 0.35 * lightness
    return to_hex(colorsys.hls_to_rgb(hue, lightness, saturation))


# Results


class NothingToDraw(OptionError):
    """The reason why there is no figure."""


class Chart(Figure):
    """A figure that a notebook shows even without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def masks(results: pd.DataFrame | str | Path) -> Figure:
    """Score by the number of masks, with a panel per benchmark and a line per model and setting.

    Bands are the 95% intervals `low` to `high`; panels with more than three lines have no bands. A line with two mask
    counts is dotted, and its intervals are bars. Scores that do not compare, such as those of another `--limit`, have a
    panel of their own, with a warning. If two results for the same point disagree, neither is drawn.
    Raises NothingToDraw if mask counts do not differ.
    """
    found = _by_table(benchmarks(_framed(results)).dropna(subset=["masks"]))
    place = ["panel", *_WHO, "masks"]
    differ = found.groupby(place, dropna=False)["score"].transform("nunique") > 1
    if differ.any():
        files = ", ".join(found.loc[differ, "file"].unique())
        warnings.warn(
            f"results with the same settings and number of masks disagree, and are left out: {files}", stacklevel=2
        )
    found = found[~differ].drop_duplicates(place)
    counts = found.groupby(place[:-1], dropna=False)["masks"].transform("nunique")
    what = "results of a setting differ in their number of masks"
    return _panels(found[counts > 1], _draw_masks, "number of masks", what)


def _framed(results: pd.DataFrame | str | Path) -> pd.DataFrame:
    """All columns of the results. Raises OptionError for a frame without them."""
    frame = results if isinstance(results, pd.DataFrame) else load(results, columns="all")
    if "share" not in frame:
        raise OptionError('a figure needs all columns: pass the folder, or rows of load(folder, columns="all")')
    return frame


def _by_table(found: pd.DataFrame) -> pd.DataFrame:
    """The rows with their `panel`: the benchmark, and what was asked in another way than in other rows of it."""
    columns = [name for name in _TABLE if name in found]
    ways = found[columns].astype(object).map(str, na_action="ignore")
    panels = found["benchmark"].copy()
    for name, rows in ways.groupby(found["benchmark"], sort=False):
        several = [column for column in columns if rows[column].nunique(dropna=False) > 1]
        words = [
            ", ".join("all questions" if key == "limit" and pd.isna(value) else f"{key}={value}" for key, value in way)
            for way in (list(zip(several, values, strict=True)) for values in rows[several].to_numpy())
        ]
        if several:
            panels[rows.index] = [f"{name}, {one}" for one in words]
            shown = "; ".join(dict.fromkeys(words))
            warnings.warn(
                f"{name} has results that are not comparable, and are not drawn together: {shown}", stacklevel=3
            )
    return found.assign(panel=panels)


def frontier(
    results: pd.DataFrame | str | Path, cost: str | None = None, colours: Mapping[str, str] | None = None
) -> Figure:
    """Score against speed, with a panel per benchmark.

    `cost` is one of `SPEEDS`; by default positions per token, or a time on one machine if these do not differ. A line
    joins the settings of a checkpoint that no other beats: solid for exact answers, dashed for approximate caches.
    Hollow points do not differ significantly from a neighbour on the line. `colours` maps names of adapters and models
    to colours. Raises NothingToDraw if no two settings differ in speed.
    """
    found = _by_table(benchmarks(_framed(results)))
    costs = found[[*COSTS]].astype(object).where(found[[*COSTS]].notna(), None).to_dict("records")
    cost = cost or measure_of_speed(costs, is_one_machine=found["machine"].nunique() == 1)
    if not cost:
        return _panels(found[:0], _draw_masks, "", "settings differ in speed")
    known = found.dropna(subset=[cost])
    speeds = known.groupby("panel")[cost].transform("nunique")
    draw = partial(_draw_frontier, cost=cost, colours=colours or {})
    faster = "" if SPEEDS[cost] else ", less is faster"
    return _panels(known[speeds > 1], draw, COSTS[cost] + faster, f"settings differ in {COSTS[cost]}")


def _labels(frame: pd.DataFrame, column: str) -> list[str]:
    """The model and adapter of each row, and the settings of `column` in which the rows differ, in words.

    Names that several weights or chat templates share have their digests.
    """
    names = {name: frame[name].fillna("") for name in ("model", "adapter")}
    for digest in (each for each in _CHECKPOINT if each not in names):
        name, own = "adapter" if digest == "adapter_weights" else "model", frame[digest].fillna("").astype(str).str[:7]
        shared = (frame.groupby(name)[digest].transform("nunique") > 1) & (own != "")
        names[name] += (" (" + own + ")").where(shared, "")
    rows = zip(*names.values(), without_shared([*frame[column]]), strict=True)
    return [", ".join([" + ".join(filter(None, (model, adapter))), *own]) for model, adapter, own in rows]


@figure_style()
def _panels(found: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], label: str, needed: str) -> Figure:
    every = list(found.groupby("panel", sort=False))
    if not every:
        raise NothingToDraw(f"nothing to draw: no two {needed}")
    groups = every[:_MOST_PANELS]
    if len(every) > len(groups):
        warnings.warn(f"only {len(groups)} of {len(every)} panels are drawn: choose rows of the frame", stacklevel=4)
    figure = Chart(figsize=(3.6 * len(groups) + 0.4, 2.8), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(groups), squeeze=False).flat, groups, strict=True):
        draw(axes, rows)
        axes.set_title(fill(str(name), _TITLE))
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy (%)" if rows["is_accuracy"].all() else rows["metric"].iloc[0])
        if not axes.get_legend():
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.18))
    heights = [legend.get_window_extent().height for axes in figure.axes if (legend := axes.get_legend())]
    figure.set_figheight(2.8 + max(heights, default=0) / figure.dpi)
    return figure


def _draw_masks(axes: Axes, rows: pd.DataFrame) -> None:
    lines = rows.groupby(_WHO, dropna=False, sort=False)
    labels = _labels(rows.drop_duplicates(_WHO), "settings_without_masks")
    for (_, line), label, colour, marker in zip(lines, labels, COLOURS, MARKERS, strict=False):
        line = line.sort_values("masks")
        is_pair = len(line) < 3  # nothing was measured between two counts
        style = ":" if is_pair else "-"
        axes.plot(line["masks"], line["score"], color=colour, marker=marker, linestyle=style, label=label)
        if is_pair:
            axes.vlines(line["masks"], line["low"], line["high"], color=colour, linewidth=1)
        elif len(lines) <= _MOST_BANDS:
            axes.fill_between(line["masks"], line["low"], line["high"], color=colour, alpha=0.14, linewidth=0)
    log_axis(axes, sorted(rows["masks"].unique()))


def _draw_frontier(axes: Axes, rows: pd.DataFrame, cost: str, colours: Mapping[str, str]) -> None:
    """Draws one panel. Points and legend are numbered from left to right.

    If there are more than `_MOST_NUMBERED` points, only those on or near a frontier get a number.
    """
    is_speed = SPEEDS[cost]
    rows = _with_marks(rows.sort_values(cost, ascending=is_speed, kind="stable"), cost, colours)
    for (_, is_exact), own in rows.groupby(["frontier", "is_exact"]):
        line = own[own["mark"].isin(["on", "hollow"])].sort_values(cost)
        style = "-" if is_exact else "--"
        axes.plot(line[cost], line["score"], color=own["colour"].iloc[0], linestyle=style, linewidth=0.9, zorder=1)
    handles, places = [], {}
    for n, (_, row) in enumerate(rows.iterrows(), start=1):
        colour = row["colour"] if row["mark"] else _BESIDE
        look: dict[str, Any] = {"color": colour, "marker": row["marker"], "linestyle": ""}
        look["markerfacecolor"] = colour if row["mark"] == "on" else PAPER
        look |= {"markersize": 6} if row["is_guest"] else {}
        half = None if pd.isna(row["high"]) else [[row["score"] - row["low"]], [row["high"] - row["score"]]]
        axes.errorbar(row[cost], row["score"], yerr=half, elinewidth=0.5, **look)
        if row["mark"] or len(rows) <= _MOST_NUMBERED:
            places[n] = row[cost], row["score"]
            handles.append(Line2D([], [], label=fill(f"{n}  {row['label']}", _LABEL), **look))
    if rows[cost].max() > _LOG_FROM * rows[cost].min():
        log_axis(axes)
    if not is_speed:
        axes.invert_xaxis()
    _number(axes, places)
    found = {*rows["marker"]}, {*rows["mark"].replace("near", "hollow")}
    told = ["\n".join(words for one, words in key.items() if one in own) for key, own in zip(_KEY, found, strict=True)]
    columns = 2 if len(handles) > 4 and max(len(str(one.get_label())) for one in handles) <= _HALF else 1
    axes.legend(
        handles=handles,
        title="\n".join(filter(None, told)),
        alignment="left",
        loc="upper left",
        bbox_to_anchor=(-0.14, -0.18),
        ncols=columns,
        handlelength=1,
        columnspacing=1,
    )


def _with_marks(rows: pd.DataFrame, cost: str, colours: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a panel with their number of a frontier, mark, marker, label and colour."""
    is_exact = ~rows["is_guest"] & ~rows.reindex(columns=["cache"])["cache"].isin(APPROXIMATE_CACHES)
    named = rows["adapter"].fillna(rows["model"])
    frontiers = rows.groupby([*(rows[name] for name in _CHECKPOINT), is_exact], dropna=False, sort=False).ngroup()
    settings = [
        Contender(row[cost], cost, row["score"], row["share"], frontier)
        for (_, row), frontier in zip(rows.iterrows(), frontiers, strict=True)
    ]
    return rows.assign(
        frontier=frontiers,
        is_exact=is_exact,
        mark=frontier_marks(settings),
        marker=is_exact.map({True: "o", False: "D"}).mask(rows["is_guest"], "*"),
        label=_labels(rows, "settings"),
        colour=named.map(colours_of(named) | {**colours}),
    )


def _number(axes: Axes, places: Mapping[int, tuple[float, float]]) -> None:
    """Writes each number beside its point. Points that are close share the place of the first one."""
    axes.autoscale_view()
    on_axes = axes.transData + axes.transAxes.inverted()
    labels: dict[tuple[float, float], list[int]] = {}
    for n, place in places.items():
        here = on_axes.transform(place)
        near = (one for one in labels if max(abs(on_axes.transform(one) - here)) < _CLOSE)
        labels.setdefault(next(near, place), []).append(n)
    for place, numbers in labels.items():
        axes.annotate(", ".join(map(str, numbers)), place, (4, 3), textcoords="offset points")
