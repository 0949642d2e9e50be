"""Seeds of one recipe: their mean curve, and their rows as one row."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from mdlm_leaderboard.rows import NO_MASKS, Curve, Estimate, LeaderboardRow, Series
from mdlm_lm_eval.results.statistics import t_interval


@dataclass(frozen=True)
class MeanRow(LeaderboardRow):
    """The mean of `seeds`."""

    seeds: tuple[LeaderboardRow, ...] = ()


def seeds_of(row: LeaderboardRow) -> tuple[LeaderboardRow, ...]:
    """The rows whose mean a row is, none of one as it was measured."""
    return row.seeds if isinstance(row, MeanRow) else ()


def folded(rows: Iterable[LeaderboardRow]) -> list[LeaderboardRow]:
    """Those that differ in their adapter's seed alone as one row, their mean; others as they are."""
    recipes: dict[Hashable, list[LeaderboardRow]] = {}
    for row in rows:
        recipes.setdefault(_recipe(row), []).append(row)
    return [
        row
        for seeds in recipes.values()
        for row in ([_mean_row(seeds)] if len(seeds) > 1 and _have_shared_counts(seeds) else seeds)
    ]


def adapter_of(row: LeaderboardRow) -> str:
    """Its adapter's name without the seed or the number of seeds, "" of none."""
    return re.sub(r", (seed \d+|mean of \d+ seeds)$", "", row.adapter or "")


def over_seeds(curves: Sequence[Curve]) -> Curve:
    """The mean curve, where all have a point, with a band from the lowest to the highest; of one curve, itself."""
    if len(curves) == 1:
        return curves[0]
    return {x: _over_seeds([curve[x] for curve in curves]) for x in shared_points(curves)}


def shared_points(curves: Iterable[Curve]) -> list[Any]:
    """The points that all have, in order; none of no curve."""
    points = [set(curve) for curve in curves]
    return sorted(set.intersection(*points)) if points else []


def with_masks(curve: Curve) -> Curve:
    """Without the point of autoregressive models."""
    return {n: estimate for n, estimate in curve.items() if n != NO_MASKS}


def _have_shared_counts(seeds: Sequence[LeaderboardRow]) -> bool:
    """Whether there is a mask count that all were measured at, or none of any."""
    curves = [seed.curve("masks") for seed in seeds]
    return bool(shared_points(curves)) or not any(curves)


def _recipe(row: LeaderboardRow) -> Hashable:
    """What seeds of one recipe share; a row whose adapter names no seed shares it with none."""
    recipe = adapter_of(row)
    if recipe == (row.adapter or ""):
        return row.id
    return row.model, recipe, row.steps, row.unmasking, row.other


def _mean_row(seeds: Sequence[LeaderboardRow]) -> MeanRow:
    """With the points that all seeds have, and the runs of all."""
    curves: dict[str, dict[Series, Curve]] = {}
    for experiment, of_first in seeds[0].curves.items():
        for series in of_first:
            if curve := _mean_curve([seed.curve(experiment, series) for seed in seeds]):
                curves.setdefault(experiment, {})[series] = curve
    changes = {
        "adapter": f"{adapter_of(seeds[0])}, mean of {len(seeds)} seeds",
        "curves": curves,
        "runs": tuple(run for seed in seeds for run in seed.runs),
    }
    return MeanRow(**{**vars(seeds[0]), **changes}, seeds=tuple(seeds))


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """With bands over tasks, as those of a single seed are; none where there is one task, such as a benchmark."""
    mean = {}
    for x, estimate in over_seeds(curves).items():
        band = t_interval(list(estimate.by_task.values()) or [estimate.mean])
        mean[x] = replace(estimate, low=band.low, high=band.high)
    return mean


def _over_seeds(seeds: Sequence[Estimate]) -> Estimate:
    means = [one.mean for one in seeds]
    tasks = seeds[0].by_task if all(one.by_task.keys() == seeds[0].by_task.keys() for one in seeds) else {}
    by_task = {task: fmean(one.by_task[task] for one in seeds) for task in tasks}
    n_questions = sum(one.n_questions for one in seeds)
    return Estimate(fmean(means), min(means), max(means), seeds[0].n_tasks, n_questions, by_task)
