"""Makes the board from the table of scores: sections with rows of estimates, their ranks, seeds and columns."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd

from mdlm_leaderboard.experiments import AUTOREGRESSIVE, BY_NAME, NO_MASKS, Series
from mdlm_leaderboard.scores import BENCHMARKS, Scores, Setting, Who
from mdlm_leaderboard.wordings import Wordings, wordings_of
from mdlm_lm_eval.declared import defaults_of
from mdlm_lm_eval.options import APPROXIMATE_CACHES, PARALLEL_RULES, DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.results import parallelism
from mdlm_lm_eval.results.decomposition import Decomposition, decomposition_of, over_seeds
from mdlm_lm_eval.results.frame import COSTS, ONE_BLOCK, is_guest, shown_costs
from mdlm_lm_eval.results.names import named, without_shared
from mdlm_lm_eval.results.statistics import (
    FEW_MODELS,
    LEAST_MODELS,
    Interval,
    Score,
    comparisons,
    difference,
    holm,
    mean_of_tasks,
    median_of_seeds,
    pairing,
)
from mdlm_lm_eval.results.suite import SPELLING_ALONE, current_version
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

ONE_STEP = ("1", AUTOREGRESSIVE)
QUALITIES = (90, 95)  # percent, of ParallelBench
LOSS_OVER = (2, 200)  # masks: the fewest that hold a whole answer, and the paper's most; decided before any result
_OF_ESTIMATE = "is_accuracy note machine pairs bound tokens_per_evaluation".split()  # noqa: SIM905
# Options that set the number of steps: rows that differ only in these are one curve of accuracy against speed.
_PACE = ("steps", "steps_per_block", *PARALLEL_RULES)


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval over questions.

    score: the `Score` from which differences are computed. If samples are known, the questions of a set are one
        cluster; seeds are random if it is their median.
    decomposition: the shares of the likeliest first tokens.
    pairs: the share of sets of `mdlm_rules` that are right all three times.

    Benchmarks also have:

    costs: the costs of the answers, by their names in `COSTS`.
    bound: the best scores of independent draws of several tokens per step, in words.
    speed: the speed by the measure `speed_by`, in which settings are compared.
    mark: one of `parallelism.marks`.
    parallel_bench: ParallelBench's PB90 and PB95, for the whole of `mdlm_parallel` only.
    """

    mean: float
    low: float | None
    high: float | None
    n_questions: int
    score: Score | None = None
    decomposition: Decomposition | None = None
    is_accuracy: bool = True
    note: str | None = None
    costs: Mapping[str, float | None] = field(default_factory=dict)
    machine: str = ""
    pairs: float | None = None
    bound: str | None = None
    speed: float = 0.0
    speed_by: str = ""
    mark: str = ""
    tokens_per_evaluation: float | None = None
    parallel_bench: Mapping[int, float | None] = field(default_factory=dict)

    @property
    def interval(self) -> Interval:
        """The interval, in percent for an accuracy."""
        few = self.score.seeds if self.score and self.low is None else ()
        return Interval(self.mean, self.low, self.high, few).scaled(100 if self.is_accuracy else 1)

    @property
    def in_words(self) -> str:
        """The mean and interval, such as "66.4 (64.0 to 68.7)", with the note if there is one."""
        if self.is_accuracy:
            return self.interval.in_words + (f" ({self.note})" if self.note else "")
        return f"{self.mean:.4g}"


Curve = Mapping[Any, Estimate]


@dataclass(frozen=True)
class Row:
    """All scores of one way of running one checkpoint.

    curves: (experiment, series) -> x -> estimate.
    files: the paths of the result files.
    seeds: the rows of which this row is the median.
    settings, shown: the settings that distinguish it from other rows of its section, by name, and in words.
    label: its name in the section.
    rank: 1 + the number of rows that are significantly better (Holm's correction for all pairs of the table), with "="
        if other rows share the rank; "" without a score to rank by.
    marks: word -> sentence, further facts for the reader.
    cache: the cache in effect, if it is the same in all results of the row.
    """

    id: str
    who: Who
    curves: Mapping[tuple[str, Series], Curve]
    files: tuple[str, ...]
    seeds: tuple["Row", ...] = ()
    shown: str = ""
    label: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    rank: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    cache: str = ""

    @property
    def words(self) -> str:
        """Its name and settings, by which a user can choose it as baseline."""
        return f"{self.who}, {', '.join(self.who.decoding)}"

    def curve(self, experiment: str, series: Series = "") -> Curve:
        """The curve of an experiment; empty if it was not measured."""
        return self.curves.get((experiment, series), {})

    @property
    def points(self) -> list[tuple[str, Series, Any]]:
        """Experiment, series and x of each of its accuracies on the suite."""
        return [(*key, x) for key, curve in self.curves.items() for x in curve if key[0] != BENCHMARKS]

    @property
    def benchmarks(self) -> Curve:
        """Column -> estimate, for all tasks outside the suite."""
        return self.curve(BENCHMARKS)

    def cost(self, name: str) -> float | None:
        """The mean of a cost over its benchmarks, weighted by questions; the maximum for memory. None if unknown."""
        found = [(v, e.n_questions) for e in self.benchmarks.values() if (v := e.costs.get(name)) is not None]
        if not found:
            return None
        values, weights = zip(*found, strict=True)
        return max(values) if name == "memory_gib" else float(np.average(values, weights=weights))


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


@dataclass(frozen=True)
class Section:
    """The rows of one setting.

    why_apart: the reasons why they share no table with full results of the standard setting; "" without any.
    common: the settings that all rows share, in words.
    pair: the two mask counts between which the loss is computed.
    """

    title: str
    why_apart: str
    setting: Setting
    rows: tuple[Row, ...]
    common: str
    pair: tuple[int, int]

    @property
    def is_suite(self) -> bool:
        """Whether its scores are of the few-shot suite."""
        return bool(self.setting.asks)

    spelling_alone = SPELLING_ALONE  # for templates

    @property
    def over_seeds(self) -> str:
        """What the numbers of rows that are medians of training seeds are about, in words; "" if there are none."""
        found = [len(row.seeds) for row in self.rows if row.seeds]
        if not found:
            return ""
        words = "Where a row is the median of several training seeds, ranks and brackets are over seeds, not questions."
        return f"{words} {FEW_MODELS}" if min(found) < LEAST_MODELS else words

    @cached_property
    def has_one_seed(self) -> bool:
        """Whether each adapter has one seed, which the names of rows can then leave out."""
        found = {(row.who.model, row.who.recipe, row.who.adapter) for row in self.rows if row.who.adapter}
        recipes = {(model, recipe) for model, recipe, adapter in found if adapter.startswith(f"{recipe}, seed ")}
        return 0 < len(found) == len(recipes)

    def who(self, row: Row) -> Who:
        """The identity by which the section's table names a row."""
        return replace(row.who, adapter=row.who.recipe) if self.has_one_seed else row.who

    def is_beyond_ranking(self, row: Row, experiment: str) -> bool:
        """Whether an experiment of the row has points that the columns of the ranking do not show."""
        return experiment != "masks" or bool(row.seeds) or not {*row.curve("masks")} <= {NO_MASKS, *self.pair}

    @property
    def is_ranked(self) -> bool:
        """Whether any row has a score to rank by."""
        return any(row.rank for row in self.rows)

    @cached_property
    def columns(self) -> list[Column]:
        """The columns in which any row has a value; of rows without a rank, a column for each of their points."""
        if not self.is_ranked:
            return [_point(*one) for one in dict.fromkeys(one for row in self.rows for one in row.points)]
        few, most = map(BY_NAME["masks"].at, self.pair)
        counts = {"from_": self.pair[0], "few": few, "most": most}
        found = [one for one in COLUMNS if any(one.of(row, self.pair) for row in self.rows)]
        return [
            replace(one, head=one.head.format(**counts), explanation=one.explanation.format(**counts)) for one in found
        ]

    @property
    def mask_counts(self) -> list[int]:
        """The mask counts of any row, if they are more than the columns show."""
        found = sorted({n for row in self.rows for n in row.curve("masks")})
        return found if len(found) > len(self.pair) else []

    @property
    def costs(self) -> list[str]:
        """The names of the costs that any row has."""
        return shown_costs(pd.DataFrame([{name: row.cost(name) for name in COSTS} for row in self.rows]))

    @property
    def settings(self) -> dict[str, str]:
        """The settings that vary between rows, with their defaults."""
        standard = {**defaults_of(LikelihoodOptions), **defaults_of(DecodingOptions)}
        known = {name: "–" if value is None else str(value) for name, value in standard.items()}
        return {name: known.get(name, "–") for row in self.rows for name in row.settings}

    def settings_of(self, row: Row) -> list[str]:
        """The row's value of each setting that varies, or the default if it is known to be in effect."""
        is_ours = row.who.family != AUTOREGRESSIVE and not any("settings unknown" in word for word in row.who.other)
        defaults = {**self.settings, **({"cache": row.cache} if row.cache and "cache" in self.settings else {})}
        return [row.settings.get(name, default if is_ours else "–") for name, default in defaults.items()]

    def baseline(self, wanted: str) -> Row | None:
        """The row that has all these words; None if no row has."""
        rows = {row.words: row for row in self.rows}
        name = named(wanted, rows) if wanted else None
        return rows[name] if name else None

    @property
    def pairing(self) -> str:
        """Whether differences of its scores are paired by question, in words."""
        return pairing(one.score for row in self.rows for one in row.benchmarks.values() if one.score)

    @property
    def n_questions(self) -> int:
        """The most questions behind an accuracy."""
        return max(one.n_questions for row in self.rows for curve in row.curves.values() for one in curve.values())

    @property
    def approximate(self) -> list[str]:
        """The kinds of rows that have a frontier of their own, in words."""
        others = [row for row in self.rows if not is_exact(row)]
        return sorted({"guests" if "guest" in row.marks else "approximate caches" for row in others})

    @property
    def marked(self) -> list[Estimate]:
        """The estimates on a frontier or near one."""
        return [one for row in self.rows for one in row.benchmarks.values() if one.mark]

    @property
    def ranked_by(self) -> str:
        """The benchmark that most rows have."""
        accuracies = [name for row in self.rows for name, one in row.benchmarks.items() if one.is_accuracy]
        return max(self.benchmark_names, key=accuracies.count, default="")

    @property
    def benchmark_names(self) -> list[str]:
        """The benchmarks of any row; the mean of a generated group before its tasks."""
        mean = self.setting.group.removeprefix("mdlm_") + " "
        return sorted({name for row in self.rows for name in row.benchmarks}, key=lambda one: (mean not in one, one))

    @property
    def bounds(self) -> dict[str, str]:
        """Benchmark -> its `Estimate.bound`, if it has one."""
        return {name: one.bound for row in self.rows for name, one in row.benchmarks.items() if one.bound}


@dataclass(frozen=True)
class Board:
    """The content of tables, figures and page. The first section is the main table.

    notes: a sentence about a model, by its name.
    """

    title: str
    sections: tuple[Section, ...]
    scores: Scores
    wordings: tuple[Wordings, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Section | None:
        """The first table of the suite."""
        return next((section for section in self.sections if section.is_suite), None)

    def notes_of(self, section: Section) -> dict[str, str]:
        """The notes about models that come first in this section."""
        models = {row.who.model for row in section.rows}
        for before in self.sections[: self.sections.index(section)]:
            models -= {row.who.model for row in before.rows}
        return {model: note for model, note in self.notes.items() if model in models}

    def labels_of(self, section: Section, row: Row) -> dict[str, Curve]:
        """The row's accuracies by masks with the examples' true labels and with others, if both were asked."""
        found = {}
        for one in self.sections:
            same = replace(one.setting, fewshot_labels=section.setting.fewshot_labels) == section.setting
            for other in one.rows:
                if same and other.who == row.who and other.curve("masks"):
                    found[str(one.setting.fewshot_labels)] = other.curve("masks")
        return found if len(found) > 1 else {}

    def is_apart(self, section: Section) -> bool:
        """Whether a section is folded on the page: it is set apart for other reasons than the first one."""
        return section.why_apart not in ("", self.sections[0].why_apart)


# Columns


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


def _point(experiment: str, series: Series, x: Any) -> Column:
    """The column of one point of an experiment."""
    words = [BY_NAME[experiment].at(x), *([BY_NAME[experiment].series_words(series)] if series != "" else [])]

    def of(row: Row, _pair: tuple[int, int]) -> Interval | None:
        found = row.curve(experiment, series).get(x)
        return found.interval if found else None

    return Column(f"{experiment}-{series}-{x}", f"{', '.join(words)} (%)", "accuracy", of)


def _at(n: int, row: Row) -> Interval | None:
    estimate = at_most(row, (n, n))
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
    Column("loss", "loss, {from_} to {most}", "accuracy at {few} minus that at {most}, in points", loss),
    Column("among_labels", "among letters, {most} (%)", "before any ban", partial(_share, name="among_labels")),
    Column("eos", "EOS, {most} (%)", "the likeliest token is the end of text", partial(_share, name="eos")),
    Column("pairs", "whole sets (%)", "sets of which all three askings are right, at {most}", _pairs),
    Column("dots_loss", "loss to dots", "from the fewest to the most dots", lambda row, _: _ends(row.curve("dots"))),
    Column("gap", "locality gap", "best minus worst position", lambda row, _: drop(row.curve("positions", "right"))),
)


# Rows


def board_of(scores: Scores, title: str, notes: Mapping[str, str]) -> Board:
    """Makes the board of a table of scores."""
    table = scores.table
    by_setting = dict(list(table.groupby("setting", sort=False)))
    size = {setting: own["place"].nunique() for setting, own in by_setting.items()}
    dates = [*sorted({one.date for one in scores.files.values()})]
    newest = {
        setting: max(dates.index(scores.files[path].date) for path in own["file"].unique())
        for setting, own in by_setting.items()
    }

    def order(one: Setting) -> tuple[Any, ...]:
        is_limited = one.limit is not None
        # The newest comparison leads, but for full results: a limited table may hold one score alone.
        which = is_limited, is_limited and size[one] < 2, -newest[one] * is_limited, -size[one]
        return (*_distance(one)[:3], *which, *_distance(one)[3:], one.suite_hash or "")

    ordered = sorted(by_setting, key=order)
    taken: dict[str, int] = {}
    sections = tuple(_section(by_setting[one], one, ordered[0], taken) for one in ordered)
    return Board(title, sections, scores, tuple(wordings_of(scores)), notes)


def _section(table: pd.DataFrame, setting: Setting, main: Setting, taken: dict[str, int]) -> Section:
    members: dict[Who, list[Row]] = {}
    for who, own in table.groupby("who", sort=False):
        files = tuple(dict.fromkeys(own["file"]))
        caches = {one.cache or "" for one in own["result"]}
        cache = caches.pop() if len(caches) == 1 else ""
        row = Row(_row_id(who, taken), who, _curves(own), files, marks=_marks(who, own), cache=cache)
        members.setdefault(_median_of(who, 0), []).append(row)
    rows = [row for seeds in members.values() for row in ([_median_row(seeds, taken)] if len(seeds) > 1 else seeds)]
    pair = _pair([set(row.curve("masks")) - {NO_MASKS} for row in rows])
    is_one = len({str(row.who) for row in rows}) == 1
    words = without_shared([row.who.decoding for row in rows])
    shown = [_named(row, own, is_one=is_one) for row, own in zip(rows, words, strict=True)]
    common = ", ".join(word for word in rows[0].who.decoding if word not in words[0])
    section = Section(_title(setting), _why_apart(setting, main), setting, tuple(shown), common, pair)
    if setting.asks:
        return replace(section, rows=_ranked(shown, lambda row: at_most(row, pair)))
    by = section.ranked_by
    return replace(section, rows=_ranked(_with_speeds(section), lambda row: row.benchmarks.get(by)))


def _named(row: Row, words: Sequence[str], *, is_one: bool) -> Row:
    """The row with its distinguishing `words`. Its label names the checkpoint, unless the section has only one."""
    all_ = ", ".join(words)
    label = all_ if is_one and all_ else ", ".join(filter(None, (str(row.who), all_)))
    settings = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
    shown = ", ".join(word for word in words if not re.match(r"\w+=", word))
    seeds = tuple(_named(one, words, is_one=False) for one in row.seeds)
    return replace(row, shown=shown, label=label, settings=settings, seeds=seeds)


def _marks(who: Who, own: pd.DataFrame) -> dict[str, str]:
    """Marks for decoding by code of others, for blocks that hold all masks, and for findings of `mdlm-check`."""
    guests = [word for word in who.other if is_guest(word)]
    marks = {"guest": f"code of others: {', '.join(guests)}"} if guests else {}
    if all(own["is_one_block"]):
        marks[ONE_BLOCK] = "block_length holds all masks, so that longer ones decode alike"
    for check in filter(None, own["check"]):
        name = "fault" if check.startswith("fault") else "stale check" if "stale: " in check else "checked"
        marks[name] = f"mdlm-check: {check}"
    return marks


def _curves(table: pd.DataFrame) -> dict[tuple[str, Series], dict[Any, Estimate]]:
    curves: dict[tuple[str, Series], dict[Any, Estimate]] = {}
    for (experiment, series, x), own in table.groupby(["experiment", "series", "x"], sort=False):
        curves.setdefault((experiment, series), {})[x] = _estimate(own)
    order = [*BY_NAME, BENCHMARKS]
    ordered = sorted(curves.items(), key=lambda one: (order.index(one[0][0]), isinstance(one[0][1], str), one[0][1]))
    return {
        (name, series): curve if name == BENCHMARKS else dict(sorted(curve.items()))
        for (name, series), curve in ordered
    }


def _estimate(own: pd.DataFrame) -> Estimate:
    """The estimate of one point: the mean over its tasks."""
    own = own.sort_values("task")
    score = mean_of_tasks([*own["share"]]) if all(own["share"]) else None
    facts = own.iloc[0].astype(object)
    facts = facts.where(facts.notna(), None)
    band, costs = score.interval if score else facts, dict(facts[[*COSTS]])
    mean, n, parts = float(own["score"].mean()), int(own["n"].sum()), decomposition_of([*own["result"]])
    return Estimate(mean, band.low, band.high, n, score, parts, costs=costs, **facts[_OF_ESTIMATE])


def _median_row(seeds: Sequence[Row], taken: dict[str, int]) -> Row:
    """The median of rows that differ only in their adapter's seed, at the points that all of them have."""
    seeds = sorted(seeds, key=lambda row: row.who.adapter)
    who = _median_of(seeds[0].who, len(seeds))
    curves: dict[tuple[str, Series], dict[Any, Estimate]] = {}
    for key, curve in seeds[0].curves.items():
        for x in curve:
            if len(found := [seed.curve(*key)[x] for seed in seeds if x in seed.curve(*key)]) == len(seeds):
                curves.setdefault(key, {})[x] = _median_estimate(found)
    files = tuple(dict.fromkeys(path for row in seeds for path in row.files))
    return Row(_row_id(who, taken), who, curves, files, tuple(seeds), marks=seeds[0].marks, cache=seeds[0].cache)


def _median_estimate(seeds: Sequence[Estimate]) -> Estimate:
    """The median of the estimates of several seeds; costs are means. Without scores it has no interval."""
    scores, parts = [one.score for one in seeds if one.score], [one.decomposition for one in seeds if one.decomposition]
    score = median_of_seeds(scores) if len(scores) == len(seeds) else None
    costs = {name: _mean([one.costs[name] for one in seeds]) for name in COSTS}
    return replace(
        seeds[0],
        mean=median(one.mean for one in seeds),
        low=score.interval.low if score else None,
        high=score.interval.high if score else None,
        n_questions=sum(one.n_questions for one in seeds),
        score=score,
        decomposition=over_seeds(parts) if len(parts) == len(seeds) else None,
        costs=costs,
        pairs=_mean([one.pairs for one in seeds]),
        tokens_per_evaluation=_mean([one.tokens_per_evaluation for one in seeds]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _median_of(who: Who, n: int) -> Who:
    """The identity of the median of `n` seeds; with 0, a key that all seeds of a recipe share.

    It is `who` itself for a row without a seed, or whose recipe no digest identifies: equal names are not enough.
    """
    if who.adapter == who.recipe or not who.adapter_recipe:
        return who
    return replace(who, adapter=f"{who.recipe}, median of {n} seeds", adapter_weights="")


def _row_id(who: Who, taken: dict[str, int]) -> str:
    named = "-".join(re.findall(r"[a-z0-9]+", f"{who} {' '.join(who.decoding)}".lower()))[:80] or "row"
    taken[named] = taken.get(named, 0) + 1
    return named if taken[named] == 1 else f"{named}-{taken[named]}"


def _pair(points: Sequence[set[Any]]) -> tuple[int, int]:
    """2 and 200 masks if any row has both; else the fewest that hold an answer, and the most, that all rows share."""
    if any(set(LOSS_OVER) <= own for own in points):
        return LOSS_OVER
    several = [own for own in points if own] or [set(LOSS_OVER)]
    counts = sorted(set.intersection(*several) or set.union(*several))
    return next((n for n in counts[:-1] if n >= LOSS_OVER[0]), counts[0]), counts[-1]


def _ranked(rows: Iterable[Row], at: Callable[[Row], Estimate | None]) -> tuple[Row, ...]:
    """The rows by accuracy, with ranks: one more than the number of significantly better rows (Holm)."""
    found = [(row, at(row)) for row in rows]
    found.sort(key=lambda pair: -pair[1].mean if pair[1] and pair[1].is_accuracy else 1.0)
    scored = [(n, one.score) for n, (_, one) in enumerate(found) if one and one.score]
    ordered = [row for row, _ in found]
    if not scored:
        return tuple(ordered)
    pairs = np.triu_indices(len(scored), 1)
    differs = holm(comparisons([score for _, score in scored])[pairs])
    ranks = 1 + np.bincount(pairs[1][differs], minlength=len(scored))  # the first of a pair is better
    for (n, _), rank in zip(scored, ranks, strict=True):
        ordered[n] = replace(ordered[n], rank=f"{rank}{'=' if sum(ranks == rank) > 1 else ''}")
    return tuple(ordered)


def at_most(row: Row, pair: tuple[int, int]) -> Estimate | None:
    """The estimate by which a row of the suite is ranked; None if it has none."""
    curve = row.curve("masks")
    return curve.get(pair[1], curve.get(NO_MASKS))


def _with_speeds(section: Section) -> list[Row]:
    """The rows of benchmarks with their speeds, marks and PB90; settings of one checkpoint are compared."""
    found = {row.id: dict(row.benchmarks) for row in section.rows}
    for name in section.benchmark_names:
        rows = [row for row in section.rows if name in row.benchmarks and row.benchmarks[name].is_accuracy]
        costs, machines = ([getattr(row.benchmarks[name], of) for row in rows] for of in ("costs", "machine"))
        by = parallelism.measure_of_speed(costs, is_one_machine=len({*machines}) == 1)
        ways: dict[Any, dict[str, parallelism.Point]] = {}  # settings of one curve of score by tokens per evaluation
        for row in rows:
            if tokens := row.benchmarks[name].tokens_per_evaluation:
                ways.setdefault((str(row.who), _way(row)), {})[row.id] = tokens, 100 * row.benchmarks[name].mean
        for way in (way for way in ways.values() if len(way) > 1):
            pb = {quality: parallelism.parallel_bench([*way.values()], quality) for quality in QUALITIES}
            for id in way:
                found[id][name] = replace(found[id][name], parallel_bench=pb)
        if by is None:
            continue
        n_settings, settings = Counter(str(row.who) for row in rows), {}
        for row in (row for row in rows if n_settings[str(row.who)] > 1):
            one, frontier = row.benchmarks[name], (str(row.who), is_exact(row))
            speed, slack = parallelism.speed_of(one.costs[by] or 0, by), parallelism.slack_of(by)
            settings[row.id] = parallelism.Setting(speed, one.mean, one.score, frontier, slack)
        for (id, setting), mark in zip(settings.items(), parallelism.marks([*settings.values()]), strict=True):
            found[id][name] = replace(found[id][name], speed=setting.speed, speed_by=by, mark=mark)
    return [replace(row, curves={(BENCHMARKS, ""): found[row.id]}) for row in section.rows]


def is_exact(row: Row) -> bool:
    """Whether answers are exact: there is no approximate cache, nor code of others that might have one."""
    return "guest" not in row.marks and not any(f"cache={name}" in row.who.other for name in APPROXIMATE_CACHES)


def _way(row: Row) -> tuple[str, ...]:
    return tuple(word for word in row.who.other if word.partition("=")[0] not in _PACE)


# Sections


def _distance(setting: Setting) -> tuple[Any, ...]:
    """The sort key of a setting: its distance from the standard setting.

    Questions that need their examples, and newer versions, come first.
    """
    version = [-int(part) for part in re.findall(r"\d+", setting.suite_version or "")]
    return (
        not setting.asks,
        setting.served_by,
        setting.suite_version != current_version(),
        *(getattr(setting, name) != standard for name, standard in DEFAULT_SETTINGS.items()),
        setting.asks != "mdlm_rules",
        version,
        setting.chat_template,
        *(getattr(setting, name) or 0 for name in DEFAULT_SETTINGS),
        setting.group,
        setting.at_own_lengths,
    )


_GROUPS = {
    "mdlm_parallel": "Filled in parallel (mdlm_parallel)",
    "mdlm_infill": "Filled in the middle (mdlm_infill)",
    "mdlm_planning": "Planning (mdlm_planning)",
}


def _title(setting: Setting) -> str:
    limit = [f"--limit {setting.limit:g}"] if setting.limit is not None else []
    limit += [f"served by {setting.served_by}"] if setting.served_by else []
    limit += ["with longer continuations"] if setting.at_own_lengths else []
    if not setting.asks:
        return ", ".join([_GROUPS.get(setting.group, "Benchmarks"), *limit])
    examples = f"{setting.fewshot_relevant} relevant and {setting.fewshot_distractors} distractor examples"
    seed = [] if setting.fewshot_seed == DEFAULT_SETTINGS["fewshot_seed"] else [f"seed {setting.fewshot_seed}"]
    wording = [f"template {setting.fewshot_template}"] if setting.fewshot_template else []
    wording += [] if setting.fewshot_labels == "true" else [f"{setting.fewshot_labels} labels"]
    wording += ["chat template"] if setting.chat_template else []
    return ", ".join([f"Few-shot suite {setting.suite_version} ({setting.asks})", examples, *seed, *wording, *limit])


_MEANING = {"wrong": ": a model that reads the labels scores near 0", "hidden": ": no model can know the rule"}


def _why_apart(setting: Setting, main: Setting) -> str:
    """The reasons why a setting shares no table with the main one, or with full results of the standard setting."""
    reasons = [f"decoded by a server ({setting.served_by})"] if setting.served_by else []
    reasons += [f"--limit {setting.limit:g} leaves out questions"] if setting.limit is not None else []
    reasons += ["n_masks were too few for some continuations"] if setting.at_own_lengths else []
    if setting.asks:
        if setting.suite_version != current_version():
            reasons.append(f"suite version {setting.suite_version} asks other questions than {current_version()}")
        if setting.suite_version == main.suite_version and setting.suite_hash != main.suite_hash:
            hashes = [(one.suite_hash or "unknown")[:12] for one in (setting, main)]
            reasons.append("the files of the suite (hash {}) differ from those of the main table ({})".format(*hashes))
        for name, standard in DEFAULT_SETTINGS.items():
            if getattr(setting, name) != standard:
                value = getattr(setting, name)
                reasons.append(f"{name}={value} is not the standard {standard}{_MEANING.get(value, '')}")
        if setting.chat_template and not main.chat_template:
            reasons.append("prompts follow the models' chat templates")
    return "; ".join(reasons)
