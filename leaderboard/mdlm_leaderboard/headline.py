"""What the board says in one sentence: what appended masks cost, before and after fine-tuning."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mdlm_leaderboard.experiments import difference
from mdlm_leaderboard.rows import ONE_STEP, Board, Curve, LeaderboardRow
from mdlm_leaderboard.seeds import adapter_of, over_seeds, shared_points, with_masks
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.statistics import Interval

_PUBLISHED = re.compile(r"LLaDA-8B-(Base|Instruct)")
_MASK_AGNOSTIC = re.compile(r"\b(MA|TV)\b", re.IGNORECASE)  # in names such as "MA (CE + TV), seed 0"
_ANSWER_TOKENS = 2  # of the suite: the option's letter and "]." (as in the paper: masks beyond them are extra)


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
        before = MaskLine(short_name(self.before.model), (_curve(self.before),), ends)
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


def short_name(model: str) -> str:
    """Without its organisation."""
    return "built-in model" if model == BUILT_IN else model.rpartition("/")[2]


def _called(model: str) -> str:
    """In a sentence."""
    return f"the {short_name(model)}" if model == BUILT_IN else short_name(model)
