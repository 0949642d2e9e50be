"""Gathers the scores of all files: cells that are whole and undisputed, and why the others are not used."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from mdlm_leaderboard import suite
from mdlm_leaderboard.rows import Estimate, Refused, Run, Setting
from mdlm_leaderboard.scores import Cell, FileScores, Score

# Two runs of one setting agree up to what another order of float sums may change.
TOLERANCE = 1e-9
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Found:
    """A task's score and the file that says it."""

    score: Score
    run: Run


@dataclass(frozen=True)
class Collected:
    """Whole cells with the runs behind them, and everything that is in none."""

    estimates: Mapping[Cell, Estimate]
    runs: Mapping[Cell, tuple[Run, ...]]
    refused: tuple[Refused, ...]


def collect(outcomes: Iterable[FileScores | Refused]) -> Collected:
    """Joins what files say of the same cell. Of two that disagree neither is used, of two that agree the first is."""
    found: dict[Cell, dict[str, Found]] = {}
    disputes: dict[Cell, dict[tuple[str, str], str]] = {}
    refused = []
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            refused.append(outcome)
            continue
        refused += [Refused(outcome.run.path, reason) for reason in outcome.left_out]
        for score in outcome.scores:
            tasks = found.setdefault(score.cell, {})
            first = tasks.setdefault(score.task, Found(score, outcome.run))
            if not _agree(first.score, score):
                pair = (first.run.path, outcome.run.path)
                disputes.setdefault(score.cell, {}).setdefault(pair, f"{first.score.mean:g} against {score.mean:g}")
    for cell, pairs in disputes.items():
        del found[cell]
        for (one, other), difference in pairs.items():
            if not cell.is_repeated:
                refused.append(Refused(one, f"disagrees with {other!r} on {cell} ({difference}); neither is used"))
    cells = _with_hashes(found)
    for cell in [cell for cell, tasks in cells.items() if _is_of_suite(cell) and tasks.keys() != suite.TASKS]:
        tasks = cells.pop(cell)
        if not cell.is_repeated:
            reason = f"holds {len(tasks)} of the {len(suite.TASKS)} tasks of {cell}; allowed are all of them"
            refused.append(Refused(next(iter(tasks.values())).run.path, reason))
    return Collected(
        estimates={cell: _estimate(cell, [one.score for one in tasks.values()]) for cell, tasks in cells.items()},
        runs={cell: _unique_runs(tasks.values()) for cell, tasks in cells.items()},
        refused=tuple(refused),
    )


def _agree(one: Score, other: Score) -> bool:
    return abs(one.mean - other.mean) <= TOLERANCE and one.n_questions == other.n_questions


def _is_of_suite(cell: Cell) -> bool:
    return cell.experiment != "benchmarks"


def _with_hashes(found: Mapping[Cell, dict[str, Found]]) -> dict[Cell, dict[str, Found]]:
    """Gives scores of other models, which record no suite hash, that of the only suite state with their setting."""
    hashes: dict[Setting, set[str]] = {}
    for cell in found:
        if cell.setting.suite_hash:
            hashes.setdefault(replace(cell.setting, suite_hash=None), set()).add(cell.setting.suite_hash)
    cells = {}
    for cell, tasks in found.items():
        known = hashes.get(cell.setting, set())
        if len(known) == 1:
            cell = replace(cell, setting=replace(cell.setting, suite_hash=next(iter(known))))
        cells[cell] = tasks
    return cells


def _estimate(cell: Cell, scores: list[Score]) -> Estimate:
    means = [score.mean for score in scores]
    if _is_of_suite(cell):
        error = stdev(means) / math.sqrt(len(means))
    else:
        error = scores[0].standard_error if scores[0].standard_error is not None else math.nan
    mean, half = fmean(means), _NORMAL_95 * error
    known = not math.isnan(half)
    return Estimate(
        mean=mean,
        low=mean - half if known else None,
        high=mean + half if known else None,
        n_tasks=len(scores),
        n_questions=sum(score.n_questions for score in scores),
    )


def _unique_runs(found: Iterable[Found]) -> tuple[Run, ...]:
    return tuple({one.run.path: one.run for one in found}.values())
