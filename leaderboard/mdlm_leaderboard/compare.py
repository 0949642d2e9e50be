"""`mdlm-leaderboard compare`: compares two result files of the same tasks, by question if samples are beside them.

Every difference is B - A. There is one verdict, of the test whose interval is shown (`difference`). `compare A
--published` compares a run of a preset with published scores, and `power` plans how many questions a difference takes.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from mdlm_leaderboard.templates import sentences
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.presets import Published, published, repeated_by, run_of
from mdlm_lm_eval.results.deviations import deviations_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.frame import rows_of
from mdlm_lm_eval.results.names import without_shared
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, leaves, read_chosen_file
from mdlm_lm_eval.results.samples import Answers, by_cluster, read_answers
from mdlm_lm_eval.results.statistics import (
    Interval,
    Score,
    comparisons,
    difference,
    interval_over_tasks,
    mean_of_tasks,
    score_over_rules,
    wilson,
)
from mdlm_lm_eval.results.text import UNMEASURED, markdown_table, noise_in_words

MARGIN = 0.03
_QUANTILE = 1.644854  # of one side's 5%
CORRELATIONS = (0.0, 0.3, 0.5, 0.7)  # of two runs' answers to a question; two settings of one model are near the last
_POWER, _LEVEL = 0.8, 0.05

Tasks = Sequence[tuple[TaskResult, TaskResult]]  # the results of each task in both files
Pairs = list[tuple[float, float]]  # the scores of each question in both files


class Run(NamedTuple):
    """A result file, with the scores of its questions, and by (task, metric) their mean with its clusters."""

    file: ResultFile
    answers: Answers
    shares: Mapping[tuple[str, str], Score | None]


def compare(first: Path, second: Path, cluster: str = "") -> list[str]:
    """A text for every metric that both files have: the sentence to quote, then a table of the tasks.

    A folder stands for its newest file. Questions whose documents have the same value in the field `cluster` are one
    cluster, by default in the field that the task's metadata name. Raises UnusableFile if the files cannot be compared.
    """
    files = (read_chosen_file(first, is_compared=True), read_chosen_file(second, is_compared=True))
    tasks = [(one, files[1].tasks[name]) for name, one in files[0].tasks.items() if name in files[1].tasks]
    _check_questions(files, tasks)
    metrics = dict.fromkeys(metric for one, other in tasks for metric in one.metrics if metric in other.metrics)
    if not metrics:
        raise UnusableFile(f"{files[0].path!r} and {files[1].path!r} have no task and metric in common")
    unread: list[str] = []
    answers = [read_answers(file, unread, cluster) for file in files]
    if unread:
        raise UnusableFile(unread[0])
    _check_samples(files, [one.name for one, _ in tasks if not all(one.name in own for own in answers)], cluster)
    runs = []
    for file, own in zip(files, answers, strict=True):
        shares = {(row["task"], row["metric"]): row["share"] for row in rows_of(file, by_cluster(own))}
        runs.append(Run(file, own, shares))
    names = labels(files, tasks)
    return [_text(runs, names, tasks, metric, cluster) for metric in metrics]


def _check_questions(files: Sequence[ResultFile], tasks: Tasks) -> None:
    """Raises UnusableFile if the files did not ask the same questions of each task."""
    if any(one.suite for one, _ in tasks):
        _check_same("state of the suite", *(file.suite_hash for file in files))
    for one, other in tasks:
        _check_same(f"version of {one.name}", one.version, other.version)
        _check_same(f"number of questions of {one.name}", one.n_questions, other.n_questions)
        _check_same(f"fewshot_seed of {one.name}", *(of.metadata.get("fewshot_seed") for of in (one, other)))


def _check_samples(files: Sequence[ResultFile], without: Sequence[str], cluster: str) -> None:
    """Raises UnusableFile if tasks without samples need them: for `cluster`, or as their questions were chosen."""
    for file, name in ((file, name) for file in files for name in without):
        n, n_all = file.tasks[name].n_questions, file.tasks[name].n_original
        if file.limit is None and n < n_all:
            raise UnusableFile(
                f"{file.path!r} asked {n} chosen questions of {n_all} of {name}, which only samples name: "
                "use lm_eval's --log_samples"
            )
    if cluster and without:
        raise UnusableFile(
            f"{cluster!r} is a field of documents, and {without[0]} has none: use lm_eval's --log_samples"
        )


def _check_same(what: str, *found: object) -> None:
    known = {one for one in found if one is not None}  # other models record no hash of the suite
    if len(known) > 1:
        values = " and ".join(map(str, found))
        raise UnusableFile(f"the {what} differs: {values}; compare results of the same questions")


def _text(runs: Sequence[Run], names: Sequence[str], tasks: Tasks, metric: str, cluster: str) -> str:
    """The comparison of one metric."""
    measured = [pair for pair in tasks if all(metric in one.metrics for one in pair)]
    by_task = {one.name: (one.metrics[metric], other.metrics[metric]) for one, other in measured}
    n_questions, head = sum(one.n_questions for one, _ in measured), metric.removesuffix(",none")
    is_accuracy = all(one.is_accuracy(metric) for pair in measured for one in pair)
    factor, form = (100, "z.1f") if is_accuracy else (1, ".4g")
    means, scores = _over_questions(runs, by_task, metric)
    words = sentences(
        "compare",
        names=names,
        tasks=[one for one, _ in measured],
        metric=head,
        n_questions=n_questions,
        is_accuracy=is_accuracy,
        form=form,
        change=_over_tasks(by_task, n_questions, is_share=is_accuracy).scaled(factor),
        test=_test(measured, means, factor, cluster) if means else None,
        is_same=bool(scores) and all(one == other for one, other in scores),
        flips=_flips(scores),
        noise=_noise([run.file for run in runs], by_task, n_questions),
        unmeasured=UNMEASURED,
    )
    paths = [f"{letter}: {name}, {run.file.path}" for letter, name, run in zip("AB", names, runs, strict=True)]
    rows = [
        [task, f"{factor * one:{form}}", f"{factor * other:{form}}", f"{factor * (other - one):+{form}}"]
        for task, (one, other) in by_task.items()
    ]
    table = markdown_table([head, "A", "B", f"B - A{' (points)' * is_accuracy}"], rows)
    return "\n\n".join(["\n".join(paths), *words, table])


def _over_questions(runs: Sequence[Run], tasks: Collection[str], metric: str) -> tuple[list[Score], Pairs]:
    """The mean of each run with its clusters, and the scores of each question in both; empty where unknown."""
    known = [[one for name in tasks if (one := run.shares[name, metric]) and one.parts] for run in runs]
    if any(len(own) < len(tasks) for own in known):
        return [], []
    is_sampled = all(metric in run.answers.get(name, {}) for run in runs for name in tasks)
    scores = [pair for name in tasks for pair in _paired(runs, name, metric)] if is_sampled else []
    return [mean_of_tasks(own) for own in known], scores


def _test(tasks: Tasks, means: Sequence[Score], factor: float, cluster: str) -> dict[str, Any]:
    """Student's t test of a change over `k` clusters, which are `of` something, with its probability."""
    fields = {cluster or one.cluster for one, _ in tasks} - {""}
    of = "sets of questions" if any(one.suite for one, _ in tasks) else "questions"
    of = f"clusters by {' and '.join(sorted(fields))}" if fields else of
    change, k = difference(*means).scaled(factor), min(one.n_clusters for one in means)
    return {"change": change, "k": k, "of": of, "p": float(comparisons(means)[0, 1])}


def _paired(runs: Sequence[Run], task: str, metric: str) -> Pairs:
    first, second = (run.answers[task][metric] for run in runs)
    if first.keys() != second.keys():
        raise UnusableFile(f"the samples of {task} are not of the same questions, so they cannot be compared")
    return [(score, second[question]) for question, score in first.items()]


def _over_tasks(by_task: Mapping[str, tuple[float, float]], n_questions: int, *, is_share: bool) -> Interval:
    """The mean of second - first over tasks, with its interval for other tasks of the kind.

    In the few-shot suite, this is for other word rules, and pairs of related rules are clusters.
    """
    if not is_share:
        return interval_over_tasks({task: second - first for task, (first, second) in by_task.items()})
    first, second = ({task: scores[n] for task, scores in by_task.items()} for n in (0, 1))
    return difference(score_over_rules(first, n_questions), score_over_rules(second, n_questions))


def _flips(scores: Pairs) -> tuple[int, int] | None:
    """How many questions only the first and only the second run has right, if all scores are right (1) or wrong (0)."""
    are_plain = scores and all(score in (0, 1) for pair in scores for score in pair)
    return (scores.count((1, 0)), scores.count((0, 1))) if are_plain else None


def _noise(files: Sequence[ResultFile], tasks: Mapping[str, object], n_questions: int) -> list[str]:
    """The noise floor of each run in words, once if both are the same."""
    groups = [group for group in files[0].groups if {*leaves(group, files[0].groups)} == {*tasks}]
    said = (noise_in_words(file.mdlm.get("check"), [*tasks, *groups], n_questions) for file in files)
    return [*dict.fromkeys(filter(None, said))]


def labels(files: Sequence[ResultFile], tasks: Sequence[Sequence[TaskResult]]) -> list[str]:
    """The model and adapter of each file, with the settings in which it differs from the other on any task."""
    words = [[*dict.fromkeys(word for pair in tasks for word in _words(file, pair[n]))] for n, file in enumerate(files)]
    names = [f"{file.model} with {file.adapter}" if file.adapter else file.model for file in files]
    apart = [", ".join(own) for own in without_shared(words)]
    return [f"{name} ({own})" if own else name for name, own in zip(names, apart, strict=True)]


def _words(file: ResultFile, result: TaskResult) -> list[str]:
    """Everything beside the checkpoint that a task's score depends on: options in effect, prompts, loading."""
    generation = result.config.get("generation_kwargs") or {}
    given = {
        "fewshot_seed": file.config.get("fewshot_seed"),
        **{name: value for name, value in result.metadata.items() if name.startswith("fewshot_")},
        **{name: generation.get(name) for name in ("until", "do_sample")},
        "shots": result.shots,
        "chat template": file.template or file.chat_template,
        "fewshot_as_multiturn": file.fewshot_as_multiturn if file.chat_template else None,
        "model": file.model_kind,
        "prompts cut off": result.counts["truncated_prompts"],
    }
    options = {name: value for name, value in sorted(result.options.items()) if name != "early_exit"}
    words = [str(one) for one in deviations_of(file, result) if one.name not in result.options]
    in_effect, asked = (
        [f"{name}={value}" for name, value in found.items() if value is not None] for found in (options, given)
    )
    return [*in_effect, *words, *asked]


# Published scores


def beside_published(path: Path) -> list[str]:
    """A sentence for each accuracy of the file and each published score. Raises UnusableFile without a preset.

    *Reproduced* means within 3 points by two one-sided tests at 5%: the run's 90% interval, for other questions, lies
    within 3 points of the published score, which is taken as it is.
    """
    file = read_chosen_file(path)
    preset = file.mdlm.get("preset")
    if not preset:
        raise UnusableFile(f"{file.path} is no run of a preset (mdlm-sweep --preset NAME, or preset=NAME)")
    run = run_of(preset)
    scores = _scores_of(preset, run)
    if not scores:
        raise UnusableFile(f"no score is published for {preset}")
    changed = dict.fromkeys(
        f"{name}={task.options[name]}, and the preset's is {value}"
        for name, value in run.options.items()
        for task in file.tasks.values()
        if task.options.get(name, value) != value
    )
    lines = [f"not as published: {one}" for one in [*file.mdlm.get("preset_mismatches", ()), *changed]]
    for result in file.top:
        n = sum(task.n_questions for task in file.tasks_of(result))
        for metric in filter(result.is_accuracy, result.metrics):
            for name, other in scores.items():
                verdict = _verdict(result.metrics[metric], n, other)
                on = f"{result.name} ({metric.removesuffix(',none')})"
                lines.append(f"{on} {verdict} ({name}, {other.dated})")
    return lines


def published_in_words(preset: str | None) -> str:
    """The scores that are published for a preset, with their dates; "" for none."""
    scores = _scores_of(preset, published()[preset]) if preset in published() else {}
    return ", ".join(f"{run.score} ({name}, {run.dated})" for name, run in scores.items())


def _scores_of(preset: str, run: Published) -> dict[str, Published]:
    """The published run of a preset, and those that others measured, if they have a score."""
    return {name: one for name, one in {preset: run, **repeated_by(preset)}.items() if one.score}


def _verdict(score: float, n: int, other: Published) -> str:
    target = float(other.score.rpartition("/")[2]) / 100
    low, high = wilson(score, n, _QUANTILE)
    gap = MARGIN - abs(score - target)
    if max(high - target, target - low) < MARGIN:
        verdict = "reproduced"
    elif low > target + MARGIN or high < target - MARGIN:
        verdict = "not reproduced"
    elif gap <= 0:
        verdict = "undecided"
    else:
        needed = math.ceil((_QUANTILE / gap) ** 2 * score * (1 - score))
        verdict = f"undecided: equal scores of about {max(needed, n + 1)} questions would tell"
    unlike = "" if other.is_target else "; the authors' task differs, so expect another number"
    shown = f"{100 * score:.1f} ({100 * low:.1f} to {100 * high:.1f}), published {other.score}"
    return f"{shown}: {100 * (score - target):+.1f}, {verdict}{unlike}"


# The questions that a difference takes


def power_of(n_questions: int, accuracies: Sequence[float], *, correlation: float, repeats: int, cluster: int) -> float:
    """The chance that `difference`'s t test finds two runs of these expected scores (from 0 to 1) different.

    correlation: of any two answers to a question, by one run or by both. So `repeats` answers to each question divide
        the variance of a difference by their number.
    cluster: the number of questions that count as one, as if they all gave the same answer: the worst case.
    """
    from scipy.special import stdtrit
    from scipy.stats import nct

    clusters = n_questions // cluster
    if clusters < 2:
        return 0.0
    first, second = (score * (1 - score) for score in accuracies)
    of_answer = first + second - 2 * correlation * math.sqrt(first * second)
    error = math.sqrt(of_answer / repeats / clusters + (n_questions * repeats) ** -2)
    quantile, shift = stdtrit(clusters - 1, 1 - _LEVEL / 2), abs(accuracies[1] - accuracies[0]) / error
    return float(nct.sf(quantile, clusters - 1, shift) + nct.cdf(-quantile, clusters - 1, shift))


def questions_for(power: Callable[[int], float], cluster: int) -> int:
    """The fewest questions, whole clusters, whose power is 80%; found by bisection."""

    def is_enough(clusters: int) -> bool:
        return power(clusters * cluster) >= _POWER

    high = next(2**n for n in count(1) if is_enough(2**n))
    return bisect_left(range(high), True, lo=high // 2 + 1, key=is_enough) * cluster


def power_in_words(
    accuracy: float,
    difference: float,
    *,
    correlation: float | None = None,
    repeats: int = 1,
    cluster: int = 1,
    questions: int | None = None,
) -> str:
    """A table of correlations, or of the one that is given, from percent and points.

    Raises OptionError for what cannot be.
    """
    other = accuracy + difference
    if not (0 < accuracy < 100 and 0 < other < 100 and difference):
        raise OptionError(f"--accuracy {accuracy:g} and {other:g} must differ, between 0 and 100")
    if correlation is not None and not 0 <= correlation < 1:
        raise OptionError(f"--correlation must be from 0 to below 1, not {correlation:g}")
    if min(repeats, cluster) < 1:
        raise OptionError("--repeats and --cluster must be at least 1")
    accuracies = accuracy / 100, other / 100
    rows = []
    for one in CORRELATIONS if correlation is None else (correlation,):
        power = partial(power_of, accuracies=accuracies, correlation=one, repeats=repeats, cluster=cluster)
        found = [] if questions is None else [f"{100 * power(questions):.0f}%"]
        rows.append([f"{one:g}", f"{questions_for(power, cluster):,}", *found])
    asked = "" if repeats == 1 else f", each asked {repeats} times"
    alike = "" if cluster == 1 else f", if the {cluster} of a cluster count as one"
    shown = [] if questions is None else [f"power of {questions:,}"]
    table = markdown_table(["correlation of the two runs' answers", f"questions for {_POWER:.0%}", *shown], rows)
    return f"{accuracy:g} against {other:g}%{asked}{alike}, by the paired t test of `compare` (5%):\n\n{table}"
