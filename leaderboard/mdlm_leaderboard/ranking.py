"""Ranks of rows by their scores, and the speeds and marks of ways of decoding."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mdlm_leaderboard.experiments import NO_MASKS
from mdlm_leaderboard.rows import Estimate, Row, is_exact
from mdlm_leaderboard.scores import BENCHMARKS
from mdlm_lm_eval.options import PARALLEL_RULES
from mdlm_lm_eval.results import parallelism
from mdlm_lm_eval.results.statistics import comparisons, holm

QUALITIES = (90, 95)  # percent, of ParallelBench
# Options that set the number of steps: rows that differ only in these are one curve of accuracy against speed.
_PACE = ("steps", "steps_per_block", *PARALLEL_RULES)


def at_masks(row: Row, n: int) -> Estimate | None:
    """The accuracy of a row of the suite with `n` masks, or of a model without masks; None if it has none."""
    curve = row.curve("masks")
    return curve.get(n, curve.get(NO_MASKS))


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
        for id, fields in (*_parallel_bench(scored), *_marks(scored)):
            found[id][name] = replace(found[id][name], **fields)
    return [replace(row, curves={(BENCHMARKS, ""): found[row.id]}) for row in rows]


def _parallel_bench(scored: Scored) -> Changes:
    """PB90 and PB95 of rows that are one curve of score by tokens per evaluation."""
    ways: dict[Any, dict[str, parallelism.Point]] = {}
    for row, one in scored:
        if tokens := one.tokens_per_evaluation:
            settings = tuple(each for each in row.who.other if each.name not in _PACE)
            ways.setdefault((str(row.who), settings), {})[row.id] = tokens, 100 * one.mean
    for way in (way for way in ways.values() if len(way) > 1):
        pb = {quality: parallelism.parallel_bench([*way.values()], quality) for quality in QUALITIES}
        yield from ((id, {"parallel_bench": pb}) for id in way)


def _marks(scored: Scored) -> Changes:
    """The speed of each row with other settings of its checkpoint, and whether it is on a frontier."""
    costs, machines = [one.costs for _, one in scored], {one.machine for _, one in scored}
    by = parallelism.measure_of_speed(costs, is_one_machine=len(machines) == 1)
    if by is None:
        return
    n_settings = Counter(str(row.who) for row, _ in scored)
    contenders = {}
    for row, one in scored:
        if n_settings[str(row.who)] > 1:
            speed, slack = parallelism.speed_of(one.costs[by] or 0, by), parallelism.slack_of(by)
            frontier = str(row.who), is_exact(row)
            contenders[row.id] = parallelism.Contender(speed, one.mean, one.score, frontier, slack)
    for (id, way), mark in zip(contenders.items(), parallelism.marks([*contenders.values()]), strict=True):
        yield id, {"speed": way.speed, "speed_by": by, "mark": mark}
