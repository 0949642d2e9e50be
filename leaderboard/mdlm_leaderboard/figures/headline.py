"""What the board says in one sentence and one figure: what appended masks cost, before and after fine-tuning."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_leaderboard.experiments import drop
from mdlm_leaderboard.figures.panels import ONE_STEP, with_masks
from mdlm_leaderboard.figures.style import CHANCE, clipped, darker
from mdlm_leaderboard.rows import Board, Curve, LeaderboardRow
from mdlm_lm_eval.results.figure_style import COLOURS, figure_style, on_dark
from mdlm_lm_eval.results.statistics import Interval, paired_interval

_PUBLISHED = re.compile(r"LLaDA-8B-(Base|Instruct)")
_MASK_AGNOSTIC = re.compile(r"\b(MA|TV)\b", re.IGNORECASE)  # in names such as "MA (CE + TV), seed 0"
_BEFORE, _AFTER, _STATED = COLOURS[1], COLOURS[0], "#5f5f5f"
_LOWEST = 25  # percent: below chance, so that its line shows
_HIGHEST = 108  # percent: room for a name above a line
_LABEL_LENGTH = 32


@dataclass(frozen=True)
class Headline:
    """A model of the first table in one step, without and with an adapter, and what a paper states of others.

    `before` is None where no model was measured at two mask counts, `after` where none of its adapters was.
    """

    before: LeaderboardRow | None
    after: LeaderboardRow | None
    published: tuple[LeaderboardRow, ...]

    @property
    def sentence(self) -> str:
        """The finding with its numbers."""
        if self.before is None:
            drops = sorted(row.stated["drop_points"] for row in self.published)
            said = f": {drops[0]:g} to {drops[-1]:g} points of LLaDA-8B's accuracy, as published" if drops else ""
            return f"Appended masks distract diffusion language models{said}."
        cost = f"Appended masks cost {_short(self.before.model)} {lost(self.before):.1f} points of accuracy"
        if self.after is None:
            return f"{cost}."
        is_agnostic = _MASK_AGNOSTIC.search(self.after.adapter or "")
        after = "after mask-agnostic fine-tuning" if is_agnostic else f"with {self.after.adapter}"
        return f"{cost}; {after} {lost(self.after):.1f}."

    @property
    def described(self) -> str:
        """The figure in words, for those who cannot see it."""
        lines = [
            f"{_short(row.model)}{f' with {row.adapter}' if row.adapter else ''}: "
            + ", ".join(f"{100 * estimate.mean:.1f}% at {n}" for n, estimate in sorted(_curve(row).items()))
            for row in (self.before, self.after)
            if row
        ]
        lines += [f"{row.model}, published: a drop of {row.stated['drop_points']:g} points" for row in self.published]
        return "Accuracy against the number of appended masks. " + "; ".join(lines) + "."


def headline_of(board: Board) -> Headline:
    """Of the first table's models, those with an adapter first, the one of the largest drop; of its adapters a
    mask-agnostic one, in the order of their names.
    """
    rows = [row for row in board.sections[0].rows if row.steps in ONE_STEP and len(_curve(row)) > 1]
    plain = [row for row in rows if row.adapter is None]
    before = max(plain, key=lambda row: (bool(_adapted(row, rows)), lost(row)), default=None)
    adapted = _adapted(before, rows) if before else []
    agnostic = [row for row in adapted if _MASK_AGNOSTIC.search(row.adapter or "")]
    stated = (row for row in board.rows if _PUBLISHED.search(row.model) and "drop_points" in row.stated)
    return Headline(before, next(iter([*agnostic, *adapted]), None), tuple(row for row in stated if not row.adapter))


def write_headline(board: Board, folder: Path) -> list[Path]:
    """Writes `masks-light.svg`, `masks-dark.svg` and both as `masks-narrow-*.svg` for phones into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    headline = headline_of(board)
    paths = []
    for name, is_narrow in (("masks", False), ("masks-narrow", True)):
        light, dark = (folder / f"{name}-{mode}.svg" for mode in ("light", "dark"))
        with figure_style(font_size=8, axes_labelsize=8, xtick_labelsize=8, ytick_labelsize=8):
            # Only the date would change from one run to the next. The version of matplotlib stays: another may place
            # things elsewhere.
            _drawn(headline, is_narrow=is_narrow).savefig(light, metadata={"Date": None}, transparent=True)
        dark.write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")
        paths += [light, dark]
    return paths


def lost(row: LeaderboardRow) -> float:
    """The drop over the mask counts in points."""
    interval = drop(_curve(row))
    return interval.mean if interval else 0.0


def _curve(row: LeaderboardRow) -> Curve:
    return with_masks(row.curve("masks"))


def _adapted(row: LeaderboardRow, rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    own = [one for one in rows if one.adapter and (one.model, one.other) == (row.model, row.other)]
    return sorted(own, key=lambda one: one.adapter or "")


def _short(model: str) -> str:
    return "the built-in model" if model == "built-in" else model.rpartition("/")[2]


def _drawn(headline: Headline, *, is_narrow: bool) -> Canvas:
    both = bool(headline.before and headline.published)
    size = (3.6, 5.2 if both else 2.8) if is_narrow else (7.4 if both else 4.4, 3.0)
    canvas = Canvas(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    title_size = 7.5 if is_narrow else 9
    shape, ratios = ((2, 1), None) if is_narrow else ((1, 2), (3, 2))
    axes = list(canvas.subplots(*shape, width_ratios=ratios).flat) if both else [canvas.subplots()]
    span = _HIGHEST - _LOWEST
    best = 100.0
    if headline.before:
        best = 100 * max(estimate.mean for estimate in _curve(headline.before).values())
        _draw_measured(axes[0], [row for row in (headline.before, headline.after) if row], title_size)
    if headline.published:
        _draw_published(axes[-1], headline.published, title_size)
        axes[-1].set_ylim(_LOWEST - best, _LOWEST - best + span)  # a point is as high as in the other panel
    return canvas


def _draw_measured(axes: Axes, rows: Sequence[LeaderboardRow], title_size: float) -> None:
    """Each line's band is that of the difference from its own best mask count, task by task."""
    highest = max(rows, key=lambda row: _curve(row)[min(_curve(row))].mean)
    for row, colour in zip(rows, (_BEFORE, _AFTER), strict=False):
        curve = _curve(row)
        xs = sorted(curve)
        bands = [(x, band) for x in xs if (band := _below_best(curve, x)).low is not None]
        means = [100 * curve[x].mean for x in xs]
        best = max(means)
        lows, highs = ([best - 100 * getattr(band, end) for _, band in bands] for end in ("high", "low"))
        axes.fill_between([x for x, _ in bands], lows, highs, color=colour, alpha=0.2, linewidth=0)
        axes.plot(xs, means, color=colour, marker="o", linewidth=1.8)
        name = clipped(f"after {row.adapter}" if row.adapter else _short(row.model), _LABEL_LENGTH)
        is_highest = row is highest
        anchor = max(means) if is_highest else min(means[: len(means) // 2 + 1])
        axes.annotate(
            f"{name}: −{lost(row):.1f} points",
            (xs[0], anchor),
            (0, 7 if is_highest else -10),
            textcoords="offset points",
            color=darker(colour, 0.25),
            va="bottom" if is_highest else "top",
        )
    counts = sorted({x for row in rows for x in _curve(row)})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(_LOWEST, _HIGHEST)
    axes.set_yticks(range(30, 101, 10))
    axes.axhline(CHANCE, color="#767676", linewidth=0.9, linestyle=(0, (1, 2)))
    axes.annotate("chance", (counts[0], CHANCE), (0, 2), textcoords="offset points", color="#595959")
    axes.set_xlabel("number of appended masks")
    axes.set_ylabel("accuracy (%)")
    found = f"{lost(rows[0]):.1f} points" + (f"; after fine-tuning {lost(rows[1]):.1f}" if len(rows) > 1 else "")
    axes.set_title(f"Masks cost {found}", loc="left", fontsize=title_size, fontweight="bold")


def _draw_published(axes: Axes, rows: Sequence[LeaderboardRow], title_size: float) -> None:
    """Two end points a line: the paper's text states no other."""
    drops = [-row.stated["drop_points"] for row in rows]
    for row, down, y in zip(rows, drops, _spread(drops, gap=15), strict=True):
        axes.plot([0, 1], [0, down], color=_STATED, marker="o", markerfacecolor="none", linestyle=(0, (4, 2)))
        axes.annotate(
            f"{row.model.rpartition('/')[2]}\n−{-down:g} points",
            (1, y),
            (7, 0),
            textcoords="offset points",
            color=darker(_STATED, 0.25),
            va="center",
            annotation_clip=False,
        )
    axes.set_xlim(-0.15, 1.1)
    axes.set_xticks([0, 1], ["at its best", "at its worst"])
    axes.set_yticks(range(-60, 1, 10))
    axes.set_xlabel("mask count (only these two ends are stated)")
    axes.set_ylabel("points from its best")
    axes.set_title("Published (arXiv 2511.21338)", loc="left", fontsize=title_size, fontweight="bold")


def _below_best(curve: Curve, x: int) -> Interval:
    """How far the accuracy at x is below the best of the curve, on the same questions."""
    best = max(curve.values(), key=lambda estimate: estimate.mean)
    if not best.by_task or best.by_task.keys() != curve[x].by_task.keys():
        return Interval(best.mean - curve[x].mean, None, None, 0)
    return paired_interval(curve[x].by_task, best.by_task)


def _spread(heights: Sequence[float], *, gap: float) -> list[float]:
    """At most two heights, moved apart where they are nearer than `gap`."""
    if len(heights) < 2 or abs(heights[0] - heights[1]) >= gap:
        return list(heights)
    middle = sum(heights) / 2
    up = heights[0] > heights[1]
    return [middle + gap / 2, middle - gap / 2] if up else [middle - gap / 2, middle + gap / 2]
