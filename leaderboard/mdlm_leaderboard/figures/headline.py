"""What the board says in one sentence and one figure: what appended masks cost, before and after fine-tuning."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_leaderboard.experiments import difference
from mdlm_leaderboard.figures.panels import ONE_STEP, adapter_of, over_seeds, shared_points, with_masks
from mdlm_leaderboard.figures.style import CHANCE, clipped, darker
from mdlm_leaderboard.rows import Board, Curve, LeaderboardRow
from mdlm_lm_eval.results.figure_style import COLOURS, figure_style, on_dark
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.statistics import Interval

_PUBLISHED = re.compile(r"LLaDA-8B-(Base|Instruct)")
_MASK_AGNOSTIC = re.compile(r"\b(MA|TV)\b", re.IGNORECASE)  # in names such as "MA (CE + TV), seed 0"
_BEFORE, _AFTER, _STATED = COLOURS[1], COLOURS[0], "#5f5f5f"
_ANSWER_TOKENS = 2  # of the suite: the option's letter and "]." (as in the paper: masks beyond them are extra)
_LOWEST = 25  # percent: below chance, so that its line shows
_ROOM = 14  # percentage points below the lowest point, for its label
_MARGIN = 4  # percentage points above the highest point
_LABEL_LENGTH = 24
_LINE_HEIGHT = 5.5  # percentage points of a label's line
_TICK_GAP = 0.31  # of counts of masks, in decades: more than from 100 to 200


@dataclass(frozen=True)
class MaskLine:
    """Accuracy against masks of one checkpoint, or of one adapter's `seeds`, whose mean the line then is."""

    name: str
    seeds: tuple[Curve, ...]
    ends: tuple[int, int]  # the masks between which a loss is stated: no look at the scores picks them

    @property
    def curve(self) -> Curve:
        """Over the mask counts that all seeds have."""
        return over_seeds(self.seeds)

    @property
    def lost(self) -> Interval:
        """Accuracy at the fewest masks minus that at the most, in points, paired by task."""
        fewest, most = (self.curve[n] for n in self.ends)
        return difference(most, fewest).scaled(100)

    @property
    def loses(self) -> bool:
        """Whether most masks serve clearly worse than fewest."""
        return round(self.lost.mean, 1) > 0 and (self.lost.low is None or self.lost.low > 0)

    @property
    def loss_in_words(self) -> str:
        """In points, with half the paired interval."""
        return self.lost.in_words if round(self.lost.mean, 1) > 0 else "none"

    @property
    def is_within_chance(self) -> bool:
        """Whether it loses, but no more than chance alone may make."""
        return round(self.lost.mean, 1) > 0 and not self.loses

    @property
    def label(self) -> str:
        """For the line's end."""
        seeds = f" ({len(self.seeds)} seeds)" if len(self.seeds) > 1 else ""
        parts = (clipped(self.name, 2 * _LABEL_LENGTH) + seeds, f"lost: {self.loss_in_words}")
        return "\n".join(line for part in parts for line in wrap(part, _LABEL_LENGTH))

    def band(self, n: int) -> tuple[float, float] | None:
        """In percent: from the lowest to the highest seed; of one, that of the difference from its best count."""
        if len(self.seeds) > 1:
            low, high = self.curve[n].low, self.curve[n].high
        else:
            best = max(self.curve.values(), key=lambda estimate: estimate.mean)
            below = difference(self.curve[n], best)
            low, high = (None if end is None else best.mean - end for end in (below.high, below.low))
        return None if low is None or high is None else (100 * low, 100 * high)


@dataclass(frozen=True)
class Headline:
    """A model of the first table in one step, without and with an adapter, and what a paper states of others.

    `before` is None where no model was measured at two mask counts; `after` are the seeds of one of its adapters.
    """

    before: LeaderboardRow | None
    after: tuple[LeaderboardRow, ...]
    published: tuple[LeaderboardRow, ...]

    @property
    def lines(self) -> tuple[MaskLine, ...]:
        """What is drawn as measured: before, then after."""
        if self.before is None:
            return ()
        curves = tuple(map(_curve, self.after))
        ends = _ends(shared_points([_curve(self.before), *curves]))
        before = MaskLine(_short(self.before.model), (_curve(self.before),), ends)
        return (before, MaskLine(self._fine_tuned, curves, ends)) if curves else (before,)

    @property
    def sentence(self) -> str:
        """The finding with its numbers."""
        if self.before is None:
            said = f": {self._stated} points of LLaDA-8B's accuracy, as published" if self.published else ""
            return f"Appended masks distract diffusion language models{said}."
        model = _called(self.before.model)
        before, *fine_tuned = self.lines
        if not before.loses:
            if not self.published:
                return f"Appended masks cost {model} no accuracy that can be measured."
            others = f"Appended masks cost LLaDA-8B {self._stated} points of accuracy, as published"
            return f"{others}; {model} shows no clear loss."
        cost = f"Appended masks cost {model} {before.loss_in_words} points of accuracy"
        if not fine_tuned:
            return f"{cost}."
        chance = ", within chance" if fine_tuned[0].is_within_chance else ""
        seeds = f" (mean of {len(self.after)} seeds)" if len(self.after) > 1 else ""
        return f"{cost}; {self._fine_tuned} {fine_tuned[0].loss_in_words}{chance}{seeds}."

    @property
    def bands(self) -> str:
        """What the measured bands are, "" where nothing is measured."""
        if not self.lines:
            return ""
        bands = "Lost: from {} to {} masks. ".format(*self.lines[0].ends)
        bands += (
            "± and bands are 95% intervals of differences on the same questions, a band's from the line's best point."
        )
        if len(self.after) > 1:
            bands += " A line of several seeds is their mean, its band from the lowest to the highest."
        return bands

    @property
    def title(self) -> str:
        """Of the measured panel."""
        before, *fine_tuned = self.lines
        if not before.loses:
            return "Measured: no clear drop"
        after = f"; fine-tuned {fine_tuned[0].loss_in_words}" if fine_tuned else ""
        return f"Measured: {before.loss_in_words} points lost{after}"

    @property
    def published_title(self) -> str:
        """Of the other panel."""
        return f"Published: {self._stated} points lost"

    @property
    def described(self) -> str:
        """The figure in words, for those who cannot see it."""
        lines = [
            f"{line.name}: " + ", ".join(f"{100 * estimate.mean:.1f}% at {n}" for n, estimate in line.curve.items())
            for line in self.lines
        ]
        lines += [f"{row.model}, published: a drop of {row.stated['drop_points']:g} points" for row in self.published]
        return "Accuracy against the number of appended masks. " + "; ".join(lines) + "."

    @property
    def _fine_tuned(self) -> str:
        adapter = adapter_of(self.after[0])
        is_agnostic = _MASK_AGNOSTIC.search(adapter)
        return "after mask-agnostic fine-tuning" if is_agnostic else f"after fine-tuning ({adapter})"

    @property
    def _stated(self) -> str:
        drops = sorted({row.stated["drop_points"] for row in self.published})
        return " to ".join(f"{points:g}" for points in drops[:1] + drops[1:][-1:])


def headline_of(board: Board) -> Headline:
    """Of the first table's models, those with an adapter first, the one of the largest drop; of its adapters a
    mask-agnostic one, in the order of their names, in all its seeds.
    """
    rows = [row for row in board.sections[0].rows if row.steps in ONE_STEP and len(_curve(row)) > 1]
    plain = [row for row in rows if row.adapter is None]
    before = max(plain, key=lambda row: (bool(_adapted(row, rows)), _lost(row)), default=None)
    adapted = _adapted(before, rows) if before else []
    agnostic = [row for row in adapted if _MASK_AGNOSTIC.search(row.adapter or "")]
    chosen = next(iter([*agnostic, *adapted]), None)
    after = tuple(row for row in adapted if chosen and adapter_of(row) == adapter_of(chosen))
    if before and chosen and len(shared_points(map(_curve, (before, *after)))) < 2:
        after = (chosen,)
    stated = (row for row in board.rows if _PUBLISHED.search(row.model) and "drop_points" in row.stated)
    return Headline(before, after, tuple(row for row in stated if not row.adapter))


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


def _lost(row: LeaderboardRow) -> float:
    curve = _curve(row)
    return MaskLine("", (curve,), _ends(sorted(curve))).lost.mean


def _ends(counts: Sequence[int]) -> tuple[int, int]:
    """Of counts in order: the fewest that hold the whole answer, and the most."""
    return next((n for n in counts[:-1] if n >= _ANSWER_TOKENS), counts[0]), counts[-1]


def _curve(row: LeaderboardRow) -> Curve:
    return with_masks(row.curve("masks"))


def _adapted(row: LeaderboardRow, rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    own = [
        one
        for one in rows
        if one.adapter
        and (one.model, one.other) == (row.model, row.other)
        and len(shared_points(map(_curve, (one, row)))) > 1
    ]
    return sorted(own, key=lambda one: one.adapter or "")


def _short(model: str) -> str:
    return "built-in model" if model == BUILT_IN else model.rpartition("/")[2]


def _called(model: str) -> str:
    """In a sentence."""
    return f"the {_short(model)}" if model == BUILT_IN else _short(model)


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
    labels = [f"{_short(row.model)}\nlost: {row.stated['drop_points']:g}" for row in headline.published]
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
    return _spread([line.label for line in headline.lines], ends)


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
