"""The rows of the board: all scores of one way of running one checkpoint, as estimates on curves; ranks and speeds."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd

from mdlm_leaderboard.scores import BENCHMARKS, BY_NAME, NO_MASKS, Series, Who
from mdlm_lm_eval.options import APPROXIMATE_CACHES, PARALLEL_RULES
from mdlm_lm_eval.results.deviations import listed
from mdlm_lm_eval.results.frame import COSTS, ONE_BLOCK
from mdlm_lm_eval.results.frontier import Contender, frontier_marks, measure_of_speed, parallel_bench
from mdlm_lm_eval.results.result_file import has_fault
from mdlm_lm_eval.results.samples import Decomposition, decomposition_of, over_seeds
from mdlm_lm_eval.results.statistics import (
    Interval,
    Score,
    comparisons,
    holm,
    mean_of_tasks,
    median_of_seeds,
    score_over_rules,
)
from mdlm_lm_eval.results.suite import task_names
from mdlm_lm_eval.results.text import check_in_words

QUALITIES = (90, 95)  # percent, of ParallelBench
# Options that set the number of steps: rows that differ only in these are one curve of accuracy against speed.
_PACE = ("steps", "steps_per_block", *PARALLEL_RULES)
_ANY = -1  # number of seeds
_OF_ESTIMATE = "is_accuracy counts machine pairs bound tokens_per_evaluation".split()  # noqa: SIM905


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval over questions, `band`, in the unit of the score.

    score: the `Score` from which differences are computed. If samples are known, the questions of a set are one
        cluster; seeds are random if it is their median.
    over_rules: the mean as an estimate for other word rules than the suite's; None but for all tasks of the suite.
    decomposition: the shares of the likeliest first tokens.
    pairs: the share of sets of `mdlm_rules` that are right all three times.

    Benchmarks also have:

    counts: the numbers of answers of which the note speaks, such as "unfinished".
    costs: the costs of the answers, by their names in `COSTS`.
    bound: the best scores of independent draws of several tokens per step, in words.
    speed: the speed by the measure `speed_by`, in which settings are compared.
    mark: one of `frontier_marks`.
    parallel_bench: ParallelBench's PB90 and PB95, for the whole of `mdlm_parallel` only.
    """

    band: Interval
    n_questions: int
    score: Score | None = None
    over_rules: Score | None = None
    decomposition: Decomposition | None = None
    is_accuracy: bool = True
    counts: Counter[str] | None = None
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
    def mean(self) -> float:
        """The mean, in the unit of the score."""
        return self.band.mean

    @property
    def interval(self) -> Interval:
        """The interval, in percent for an accuracy."""
        return self.band.scaled(100 if self.is_accuracy else 1)

    @property
    def note(self) -> str:
        """The counts in words, such as "7 prompts cut off, 2 unfinished"."""
        return ", ".join(f"{n} {words}" for words, n in (self.counts or {}).items() if n)

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
        return f"{self.who}, {listed(self.who.decoding)}"

    def curve(self, experiment: str, series: Series = "") -> Curve:
        """The curve of an experiment; empty if it was not measured."""
        return self.curves.get((experiment, series), {})

    def at_masks(self, n: int) -> Estimate | None:
        """The suite's accuracy with `n` masks, or that of a model without masks; None without either."""
        curve = self.curve("masks")
        return curve.get(n, curve.get(NO_MASKS))

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


def is_exact(row: Row) -> bool:
    """Whether answers are exact: there is no approximate cache, nor code of others that might have one."""
    return "guest" not in row.marks and not any(
        one.name == "cache" and one.value in APPROXIMATE_CACHES for one in row.who.other
    )


def board_rows(table: pd.DataFrame, taken: dict[str, int]) -> list[Row]:
    """The rows of a section's scores; rows that differ in their seed alone are one. `taken`: ids that are in use."""
    members: dict[Who, list[Row]] = {}
    for who, own in table.groupby("who", sort=False):
        files = tuple(dict.fromkeys(own["file"]))
        caches = {one.cache or "" for one in own["result"]}
        cache = caches.pop() if len(caches) == 1 else ""
        row = Row(_row_id(who, taken), who, _curves(own), files, marks=_marks(who, own), cache=cache)
        members.setdefault(_median_of(who, _ANY), []).append(row)
    return [row for seeds in members.values() for row in ([_median_row(seeds, taken)] if len(seeds) > 1 else seeds)]


def _marks(who: Who, own: pd.DataFrame) -> dict[str, str]:
    """Marks for decoding by code of others, for blocks that hold all masks, and for findings of `mdlm-check`."""
    guests = [one for one in who.other if one.is_guest]
    marks = {"guest": f"external code: {listed(guests)}"} if guests else {}
    if all(own["is_one_block"]):
        marks[ONE_BLOCK] = "block_length holds all masks, so that longer ones decode alike"
    for check in filter(None, own["check"]):
        name = "fault" if has_fault(check) else "stale check" if check["stale"] else "checked"
        marks[name] = f"mdlm-check: {check_in_words(check)}"
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
    mean, n, parts = float(own["score"].mean()), int(own["n"].sum()), decomposition_of([*own["result"]])
    band = replace(score.interval, mean=mean) if score else Interval(mean, facts["low"], facts["high"])
    of_suite = all(result.suite for result in own["result"]) and len(own) == len(task_names())
    over_rules = score_over_rules(dict(zip(own["name"], own["score"], strict=True)), n) if of_suite else None
    return Estimate(band, n, score, over_rules, parts, costs=dict(facts[[*COSTS]]), **facts[_OF_ESTIMATE])


def _median_row(seeds: Sequence[Row], taken: dict[str, int]) -> Row:
    """The median of rows that differ only in their adapter's seed, at the points that all of them have."""
    seeds = sorted(seeds, key=lambda row: row.who.adapter)
    who = _median_of(seeds[0].who, len(seeds))
    curves = {}
    for key, curve in seeds[0].curves.items():
        if shared := [x for x in curve if all(x in one.curve(*key) for one in seeds)]:
            curves[key] = {x: _median_estimate([one.curve(*key)[x] for one in seeds]) for x in shared}
    files = tuple(dict.fromkeys(path for row in seeds for path in row.files))
    marks = {mark: words for row in seeds for mark, words in row.marks.items()}
    return Row(_row_id(who, taken), who, curves, files, tuple(seeds), marks=marks, cache=seeds[0].cache)


def _median_estimate(seeds: Sequence[Estimate]) -> Estimate:
    """The median of the estimates of several seeds; costs are means, counts sums. Without scores it has no interval."""
    scores, parts = [one.score for one in seeds if one.score], [one.decomposition for one in seeds if one.decomposition]
    score = median_of_seeds(scores) if len(scores) == len(seeds) else None
    return replace(
        seeds[0],
        band=score.interval if score else Interval(median(one.mean for one in seeds)),
        n_questions=sum(one.n_questions for one in seeds),
        score=score,
        over_rules=None,
        decomposition=over_seeds(parts) if len(parts) == len(seeds) else None,
        counts=sum((one.counts or Counter() for one in seeds), Counter[str]()),
        costs={name: _mean([one.costs[name] for one in seeds]) for name in COSTS},
        pairs=_mean([one.pairs for one in seeds]),
        tokens_per_evaluation=_mean([one.tokens_per_evaluation for one in seeds]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _median_of(who: Who, n: int) -> Who:
    """The identity of the median of `n` seeds, which all seeds of a recipe share.

    It is `who` itself for a row without a seed, or whose recipe no digest identifies: equal names are not enough.
    """
    if who.seed is None or not who.adapter_recipe:
        return who
    return replace(who, seed=None, n_seeds=n, adapter_weights="")


def _row_id(who: Who, taken: dict[str, int]) -> str:
    named = "-".join(re.findall(r"[a-z0-9]+", f"{who} {' '.join(map(str, who.decoding))}".lower()))[:80] or "row"
    taken[named] = taken.get(named, 0) + 1
    return named if taken[named] == 1 else f"{named}-{taken[named]}"


# Ranks and speeds


def ranked(rows: Iterable[Row], at: Callable[[Row], Estimate | None]) -> tuple[Row, ...]:
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


Scored = Sequence[tuple[Row, Estimate]]  # rows with their accuracies on one benchmark
Changes = Iterator[tuple[str, dict[str, Any]]]  # ids of rows, and fields of their estimates


def with_speeds(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of benchmarks with their speeds, marks and PB90; settings of one checkpoint are compared."""
    found = {row.id: dict(row.benchmarks) for row in rows}
    for name in names:
        scored = [(row, one) for row in rows if (one := row.benchmarks.get(name)) and one.is_accuracy]
        for id, fields in (*_parallel_bench(scored), *_frontiers(scored)):
            found[id][name] = replace(found[id][name], **fields)
    return [replace(row, curves={(BENCHMARKS, ""): found[row.id]}) for row in rows]


def _parallel_bench(scored: Scored) -> Changes:
    """PB90 and PB95 of rows that are one curve of score by tokens per evaluation."""
    ways: dict[Any, dict[str, tuple[float, float]]] = {}
    for row, one in scored:
        if tokens := one.tokens_per_evaluation:
            settings = tuple(each for each in row.who.other if each.name not in _PACE)
            ways.setdefault((str(row.who), settings), {})[row.id] = tokens, 100 * one.mean
    for way in (way for way in ways.values() if len(way) > 1):
        pb = {quality: parallel_bench([*way.values()], quality) for quality in QUALITIES}
        yield from ((id, {"parallel_bench": pb}) for id in way)


def _frontiers(scored: Scored) -> Changes:
    """The speed of each row with other settings of its checkpoint, and whether it is on a frontier."""
    costs, machines = [one.costs for _, one in scored], {one.machine for _, one in scored}
    by = measure_of_speed(costs, is_one_machine=len(machines) == 1)
    if by is None:
        return
    n_settings = Counter(str(row.who) for row, _ in scored)
    contenders = {}
    for row, one in scored:
        if n_settings[str(row.who)] > 1:
            contenders[row.id] = Contender(one.costs[by] or 0, by, one.mean, one.score, (str(row.who), is_exact(row)))
    for (id, way), mark in zip(contenders.items(), frontier_marks([*contenders.values()]), strict=True):
        yield id, {"speed": way.speed, "speed_by": by, "mark": mark}
