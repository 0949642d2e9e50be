"""The headline's figure: accuracy against appended masks, measured and as published."""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_leaderboard.figures.style import CHANCE, clipped, darker
from mdlm_leaderboard.headline import Headline, MaskLine, headline_of, short_name
from mdlm_leaderboard.rows import Board
from mdlm_lm_eval.results.figure_style import COLOURS, figure_style, on_dark

_BEFORE, _AFTER, _STATED = COLOURS[1], COLOURS[0], "#5f5f5f"
_LOWEST = 25  # percent: below chance, so that its line shows
_ROOM = 14  # percentage points below the lowest point, for its label
_MARGIN = 4  # percentage points above the highest point
_LABEL_LENGTH = 24
_LINE_HEIGHT = 5.5  # percentage points of a label's line
_TICK_GAP = 0.31  # of counts of masks, in decades: more than from 100 to 200


def write_headline(board: Board, folder: Path) -> list[Path]:
    """Writes `masks-light.svg`, `masks-dark.svg` and both as `masks-narrow-*.svg` for phones into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    headline = headline_of(board)
    paths = []
    for name, is_narrow in (("masks", False), ("masks-narrow", True)):
        light, dark = (folder / f"{name}-{mode}.svg" for mode in ("light", "dark"))
        with figure_style(font_size=8, axes_titlesize=9, axes_labelsize=8, xtick_labelsize=8, ytick_labelsize=8):
            # Only the date would change from one run to the next. The version of matplotlib stays: another may place
            # things elsewhere.
            _drawn(headline, is_narrow=is_narrow).savefig(light, metadata={"Date": None}, transparent=True)
        dark.write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")
        paths += [light, dark]
    return paths


def _drawn(headline: Headline, *, is_narrow: bool) -> Canvas:
    both = bool(headline.before and headline.published)
    size = (3.6, 4.8 if both else 2.6) if is_narrow else (7.4 if both else 4.4, 2.8)
    canvas = Canvas(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    shape, ratios = ((2, 1), None) if is_narrow else ((1, 2), (3, 2))
    axes = list(canvas.subplots(*shape, width_ratios=ratios).flat) if both else [canvas.subplots()]
    measured = [100 * estimate.mean for line in headline.lines for estimate in line.curve.values()]
    best = 100 * max(e.mean for e in headline.lines[0].curve.values()) if headline.lines else 100
    stated = [best - row.stated["drop_points"] for row in headline.published]
    lowest = min(_LOWEST, *(lowest - _ROOM for lowest in measured + stated))
    tops = [y + _height(label) / 2 for label, y in _labels(headline)]
    highest = max([*tops, *(_MARGIN + y for y in [best, *measured])])
    if headline.lines:
        _draw_measured(axes[0], headline, (lowest, highest))
        if is_narrow:
            axes[0].set_title(headline.title.replace("; ", ";\n"), loc="left", fontweight="bold")
    if headline.published:
        _draw_published(axes[-1], headline)
        axes[-1].set_ylim(lowest - best, highest - best)  # a point is as high as in the other panel
    return canvas


def _draw_measured(axes: Axes, headline: Headline, limits: tuple[float, float]) -> None:
    counts = sorted({n for line in headline.lines for n in line.curve})
    for line, colour in zip(headline.lines, (_BEFORE, _AFTER), strict=False):
        bands = [(n, *band) for n in line.curve if (band := line.band(n))]
        across, lows, highs = ([part[k] for part in bands] for k in range(3))
        axes.fill_between(across, lows, highs, color=colour, alpha=0.2, linewidth=0)
        means = [100 * estimate.mean for estimate in line.curve.values()]
        axes.plot(list(line.curve), means, color=colour, marker="o", linewidth=1.8)
    for (label, y), colour in zip(_labels(headline), (_BEFORE, _AFTER), strict=False):
        _label(axes, label, (counts[-1], y), darker(colour, 0.25))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_ticks(counts)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(0, 101, 10))
    axes.set_ylim(*limits)
    axes.axhline(CHANCE, color="#767676", linewidth=0.9, linestyle=(0, (1, 2)))
    axes.annotate("guessing", (counts[0], CHANCE), (0, 2), textcoords="offset points", color="#595959")
    axes.set_xlabel("number of appended masks")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(headline.title, loc="left", fontweight="bold")


def _draw_published(axes: Axes, headline: Headline) -> None:
    """Two end points a line: the paper's text states no other."""
    drops = [-row.stated["drop_points"] for row in headline.published]
    labels = [f"{short_name(row.model)}\nlost: {row.stated['drop_points']:g}" for row in headline.published]
    for down, (label, y) in zip(drops, _spread(labels, drops), strict=True):
        axes.plot([0, 1], [0, down], color=_STATED, marker="o", markerfacecolor="none", linestyle=(0, (4, 2)))
        _label(axes, label, (1, y), darker(_STATED, 0.25))
    axes.set_xlim(-0.25, 1.1)
    axes.set_xticks([0, 1], ["at its best\nmask count", "at its worst"])
    axes.set_yticks(range(-100, 1, 10))
    axes.set_ylabel("points from its best")
    axes.set_title(headline.published_title, loc="left", fontweight="bold")


def _label(axes: Axes, text: str, at: tuple[float, float], colour: str) -> None:
    """To the right of a line's end."""
    axes.annotate(text, at, (8, 0), textcoords="offset points", color=colour, va="center", annotation_clip=False)


def _ticks(counts: Sequence[int]) -> list[int]:
    """The first, the last, and those between whose numbers would touch no other."""
    first, *others = counts
    kept = [first]
    for n in others[:-1]:
        if min(math.log10(n / kept[-1]), math.log10(counts[-1] / n)) > _TICK_GAP:
            kept.append(n)
    return [*kept, *others[-1:]]


def _labels(headline: Headline) -> list[tuple[str, float]]:
    """Of the measured lines, each with the height of its middle in percent."""
    ends = [100 * line.curve[max(line.curve)].mean for line in headline.lines]
    return _spread([line_label(line) for line in headline.lines], ends)


def line_label(line: MaskLine) -> str:
    """For the line's end."""
    seeds = f" ({len(line.seeds)} seeds)" if len(line.seeds) > 1 else ""
    parts = (clipped(line.name, 2 * _LABEL_LENGTH) + seeds, f"lost: {line.loss_in_words}")
    return "\n".join(part for whole in parts for part in wrap(whole, _LABEL_LENGTH))


def _height(label: str) -> float:
    """In percentage points."""
    return _LINE_HEIGHT * (label.count("\n") + 1)


def _spread(labels: Sequence[str], heights: Sequence[float]) -> list[tuple[str, float]]:
    """At most two labels at heights that are moved apart where the labels would touch."""
    gap = sum(map(_height, labels)) / 2 + _LINE_HEIGHT / 4
    if len(heights) == 2 and abs(heights[0] - heights[1]) < gap:
        middle, aside = sum(heights) / 2, gap / 2 if heights[0] > heights[1] else -gap / 2
        heights = [middle + aside, middle - aside]
    return list(zip(labels, heights, strict=True))
