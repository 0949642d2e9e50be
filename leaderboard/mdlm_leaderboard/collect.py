"""Gathers the scores of all files: places that are whole and undisputed, and why the others are not used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mdlm_leaderboard.rows import Estimate, Refused, Run, Setting
from mdlm_leaderboard.scores import FileScores, Place, TaskScore
from mdlm_lm_eval.results.statistics import Interval, t_interval
from mdlm_lm_eval.results.suite import task_names

# Two runs of one setting agree up to what another order of float sums may change.
TOLERANCE = 1e-9
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Found:
    """A task's score and the file that says it."""

    score: TaskScore
    run: Run


@dataclass(frozen=True)
class Collected:
    """Whole places with the runs behind them, and everything that is in none."""

    estimates: Mapping[Place, Estimate]
    runs: Mapping[Place, tuple[Run, ...]]
    refused: tuple[Refused, ...]


def collect(outcomes: Iterable[FileScores | Refused]) -> Collected:
    """Joins what files say of the same place. Of two that disagree neither is used, of two that agree the first is."""
    outcomes = list(outcomes)
    hashes = _hashes(score.place.setting for one in outcomes if isinstance(one, FileScores) for score in one.scores)
    found: dict[Place, dict[str, Found]] = {}
    disputes: dict[Place, dict[tuple[str, str], str]] = {}
    refused = []
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            refused.append(outcome)
            continue
        refused += [Refused(outcome.run.path, reason) for reason in outcome.left_out]
        for score in (replace(one, place=_with_hash(one.place, hashes)) for one in outcome.scores):
            tasks = found.setdefault(score.place, {})
            first = tasks.setdefault(score.task, Found(score, outcome.run))
            if not _agree(first.score, score):
                pair = (first.run.path, outcome.run.path)
                disputes.setdefault(score.place, {}).setdefault(pair, f"{first.score.mean:g} against {score.mean:g}")
    for place, pairs in disputes.items():
        del found[place]
        for (one, other), difference in pairs.items():
            if not place.is_repeated:
                refused.append(Refused(one, f"disagrees with {other!r} on {place} ({difference}); neither is used"))
    for place in [place for place, tasks in found.items() if _is_of_suite(place) and tasks.keys() != task_names()]:
        tasks = found.pop(place)
        if not place.is_repeated:
            found_one = next(iter(tasks.values()))
            were = "was" if len(tasks) == 1 else "were"
            reason = (
                f"only {len(tasks)} of {found_one.score.group}'s {len(task_names())} tasks {were} run with "
                f"{place.point}; the leaderboard needs all {len(task_names())}"
            )
            refused.append(Refused(found_one.run.path, reason))
    return Collected(
        estimates={place: _estimate(place, [one.score for one in tasks.values()]) for place, tasks in found.items()},
        runs={place: _unique_runs(tasks.values()) for place, tasks in found.items()},
        refused=tuple(refused),
    )


def _agree(one: TaskScore, other: TaskScore) -> bool:
    return abs(one.mean - other.mean) <= TOLERANCE and one.n_questions == other.n_questions


def _is_of_suite(place: Place) -> bool:
    return place.experiment != "benchmarks"


def _hashes(settings: Iterable[Setting]) -> dict[Setting, str]:
    """Of settings without their suite hash, those with one state of the suite."""
    hashes: dict[Setting, set[str]] = {}
    for setting in set(settings):
        if setting.suite_hash:
            hashes.setdefault(replace(setting, suite_hash=None), set()).add(setting.suite_hash)
    return {setting: next(iter(known)) for setting, known in hashes.items() if len(known) == 1}


def _with_hash(place: Place, hashes: Mapping[Setting, str]) -> Place:
    """Gives scores of other models, which record no suite hash, that of the only suite state with their setting."""
    known = hashes.get(place.setting)
    return replace(place, setting=replace(place.setting, suite_hash=known)) if known else place


def _estimate(place: Place, scores: list[TaskScore]) -> Estimate:
    by_task = {score.task: score.mean for score in scores}
    band = t_interval(list(by_task.values())) if _is_of_suite(place) else _over_questions(scores[0])
    return Estimate(
        mean=band.mean,
        low=band.low,
        high=band.high,
        n_tasks=len(scores),
        n_questions=sum(score.n_questions for score in scores),
        by_task=by_task,
        speed=scores[0].speed,
    )


def _over_questions(score: TaskScore) -> Interval:
    """lm-eval's standard error is one over questions, of which benchmarks have hundreds."""
    if score.standard_error is None:
        return Interval(score.mean, None, None, score.n_questions)
    half = _NORMAL_95 * score.standard_error
    return Interval(score.mean, score.mean - half, score.mean + half, score.n_questions)


def _unique_runs(found: Iterable[Found]) -> tuple[Run, ...]:
    return tuple({one.run.path: one.run for one in found}.values())
