"""`mdlm-leaderboard compare`: compares two result files of the same tasks, by question if samples are beside them.

Every difference is B - A. There is one verdict, of the test whose interval is shown (`difference`).
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mdlm_leaderboard.templates import sentences
from mdlm_lm_eval.results.deviations import deviations_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.frame import rows_of
from mdlm_lm_eval.results.in_words import UNMEASURED, noise_in_words
from mdlm_lm_eval.results.markdown import markdown_table
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
)

Tasks = Sequence[tuple[TaskResult, TaskResult]]  # the results of each task in both files


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
    without = [one.name for one, _ in tasks if not all(one.name in own for own in answers)]
    if cluster and without:
        raise UnusableFile(
            f"{cluster!r} is a field of documents, and {without[0]} has none: use lm_eval's --log_samples"
        )
    shares = [
        {(row["task"], row["metric"]): row["share"] for row in rows_of(file, by_cluster(own))}
        for file, own in zip(files, answers, strict=True)
    ]
    names = labels(files, tasks)
    return [_text(files, names, tasks, metric, answers, shares, cluster) for metric in metrics]


def _check_questions(files: Sequence[ResultFile], tasks: Tasks) -> None:
    """Raises UnusableFile if the files did not ask the same questions of each task."""
    if any(one.suite for one, _ in tasks):
        _check_same("state of the suite", *(file.suite_hash for file in files))
    for one, other in tasks:
        _check_same(f"version of {one.name}", one.version, other.version)
        _check_same(f"number of questions of {one.name}", one.n_questions, other.n_questions)
        _check_same(f"fewshot_seed of {one.name}", *(of.metadata.get("fewshot_seed") for of in (one, other)))


def _check_same(what: str, *found: object) -> None:
    known = {one for one in found if one is not None}  # other models record no hash of the suite
    if len(known) > 1:
        values = " and ".join(map(str, found))
        raise UnusableFile(f"the {what} differs: {values}; compare results of the same questions")


def _text(
    files: Sequence[ResultFile],
    names: Sequence[str],
    tasks: Tasks,
    metric: str,
    answers: Sequence[Answers],
    shares: Sequence[Mapping[tuple[str, str], Score | None]],
    cluster: str,
) -> str:
    """The comparison of one metric. `answers` and `shares` are those of each file, by task and metric."""
    measured = [pair for pair in tasks if all(metric in one.metrics for one in pair)]
    by_task = {one.name: (one.metrics[metric], other.metrics[metric]) for one, other in measured}
    n_questions, head = sum(one.n_questions for one, _ in measured), metric.removesuffix(",none")
    is_accuracy = all(one.is_accuracy(metric) for pair in measured for one in pair)
    factor, form = (100, "z.1f") if is_accuracy else (1, ".4g")
    means, scores = _over_questions(by_task, metric, answers, shares)
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
        noise=_noise(files, by_task, n_questions),
        unmeasured=UNMEASURED,
    )
    paths = [f"{letter}: {name} ({file.path})" for letter, name, file in zip("AB", names, files, strict=True)]
    rows = [
        [task, f"{factor * one:{form}}", f"{factor * other:{form}}", f"{factor * (other - one):+{form}}"]
        for task, (one, other) in by_task.items()
    ]
    table = markdown_table([head, "A", "B", f"B - A{' (points)' * is_accuracy}"], rows)
    return "\n\n".join(["\n".join(paths), *words, table])


def _over_questions(
    tasks: Collection[str],
    metric: str,
    answers: Sequence[Answers],
    shares: Sequence[Mapping[tuple[str, str], Score | None]],
) -> tuple[list[Score], list[tuple[float, float]]]:
    """The mean of each file with its clusters, and the scores of each question in both; empty where unknown."""
    known = [[one for name in tasks if (one := own[name, metric]) and one.parts] for own in shares]
    if any(len(own) < len(tasks) for own in known):
        return [], []
    is_sampled = all(metric in own.get(name, {}) for own in answers for name in tasks)
    scores = [pair for name in tasks for pair in _paired(name, metric, answers)] if is_sampled else []
    return [mean_of_tasks(own) for own in known], scores


class _Test(NamedTuple):
    """Student's t test of a change over `k` clusters, which are `of` something, with its probability."""

    change: Interval
    k: int
    of: str
    p: float


def _test(tasks: Tasks, means: Sequence[Score], factor: float, cluster: str) -> _Test:
    fields = {cluster or one.cluster for one, _ in tasks} - {""}
    of = "sets of questions" if any(one.suite for one, _ in tasks) else "questions"
    of = f"clusters by {' and '.join(sorted(fields))}" if fields else of
    change, k = difference(*means).scaled(factor), min(one.n_clusters for one in means)
    return _Test(change, k, of, float(comparisons(means)[0, 1]))


def _paired(task: str, metric: str, answers: Sequence[Answers]) -> list[tuple[float, float]]:
    """The scores of each question in both runs."""
    first, second = (own[task][metric] for own in answers)
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


def _flips(scores: Sequence[tuple[float, float]]) -> tuple[int, int] | None:
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
    return [", ".join([name, *own]) for name, own in zip(names, without_shared(words), strict=True)]


def _words(file: ResultFile, result: TaskResult) -> list[str]:
    """Everything beside the checkpoint that a task's score depends on: options in effect, prompts, loading."""
    generation = result.config.get("generation_kwargs") or {}
    given = {
        "fewshot_seed": file.config.get("fewshot_seed"),
        **{name: value for name, value in result.metadata.items() if name.startswith("fewshot_")},
        **{name: generation.get(name) for name in ("until", "do_sample")},
        "shots": result.shots,
        "chat template": file.chat_template,
        "model": file.model_kind,
        "prompts cut off": result.counts["truncated_prompts"],
    }
    options = {name: value for name, value in sorted(result.options.items()) if name != "early_exit"}
    words = [str(one) for one in deviations_of(file, result) if one.name not in result.options]
    in_effect, asked = (
        [f"{name}={value}" for name, value in found.items() if value is not None] for found in (options, given)
    )
    return [*in_effect, *words, *asked]
