"""`mdlm-leaderboard compare`: two result files of the same tasks, by question where their samples are beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.frame import rows_of, setting_of
from mdlm_lm_eval.results.in_words import UNMEASURED, noise_in_words
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, leaves, read_chosen_file
from mdlm_lm_eval.results.samples import Answer, scores_by_question
from mdlm_lm_eval.results.statistics import (
    Interval,
    McNemar,
    Score,
    difference,
    interval_over_tasks,
    mcnemar,
    mean_of_tasks,
    score_over_rules,
)
from mdlm_lm_eval.results.suite import suite_task


@dataclass(frozen=True)
class Comparison:
    """One metric of two runs. All intervals are of `second - first` on the same tasks or questions.

    is_accuracy: whether scores are shares from 0 to 1, whose differences are given in percentage points.
    by_task: task -> both scores.
    over_tasks: mean over tasks with the interval for other tasks of the kind; of the few-shot suite for other word
        rules, clustered by pairs of related ones.
    over_questions: the same mean with the interval for other questions of these tasks, whose sets are clusters. None
        without samples, and where a score is no mean of shares, such as a perplexity.
    answers: right answers that only one of them gives, None without samples or where scores are not right or wrong.
    is_equal: whether samples say that every question has the same score in both.
    noise: what rounding alone does to the answers of each, in words.
    files: where both are.
    """

    first: str
    second: str
    metric: str
    is_accuracy: bool
    by_task: Mapping[str, tuple[float, float]]
    n_questions: int
    over_tasks: Interval
    over_questions: Interval | None
    answers: McNemar | None
    is_equal: bool
    noise: tuple[str, ...] = ()
    files: tuple[str, str] = ("", "")

    def shown(self, score: float) -> str:
        """In percent where it is an accuracy."""
        return f"{100 * score:.1f}" if self.is_accuracy else f"{score:.4g}"


def compare(first: Path, second: Path) -> list[Comparison]:
    """One comparison for every metric that both files have, of folders their newest files.

    Raises UnusableFile where they cannot be compared.
    """
    files = (read_chosen_file(first), read_chosen_file(second))
    shared = [name for name in files[0].tasks if name in files[1].tasks]
    pairs = [(files[0].tasks[name], files[1].tasks[name]) for name in shared]
    if any(map(suite_task, shared)):
        _check_same("state of the suite", *(file.suite_hash for file in files))
    for one, other in pairs:
        _check_same(f"version of {one.name}", one.version, other.version)
        _check_same(f"number of questions of {one.name}", one.n_questions, other.n_questions)
        _check_same(f"fewshot_seed of {one.name}", *(of.metadata.get("fewshot_seed") for of in (one, other)))
    metrics = dict.fromkeys(metric for one, other in pairs for metric in one.metrics if metric in other.metrics)
    if not metrics:
        raise UnusableFile(f"{files[0].path!r} and {files[1].path!r} have no task and metric in common")
    unread: list[str] = []
    names, answers = labels(files, pairs), [scores_by_question(file, unread) for file in files]
    if unread:
        raise UnusableFile(unread[0])
    shares = [
        {(row["task"], row["metric"]): row["share"] for row in rows_of(file, own)}
        for file, own in zip(files, answers, strict=True)
    ]
    found = [_comparison(names, pairs, metric, answers, shares) for metric in metrics]
    return [replace(one, noise=_noise(files, one), files=(files[0].path, files[1].path)) for one in found]


def _noise(files: Sequence[ResultFile], comparison: Comparison) -> tuple[str, ...]:
    """Of both runs; said once where it is the same."""
    groups = [group for group in files[0].groups if {*leaves(group, files[0].groups)} == {*comparison.by_task}]
    tasks, checks = [*comparison.by_task, *groups], [(file.mdlm or {}).get("check") for file in files]
    said = (noise_in_words(check, tasks, comparison.n_questions) for check in checks)
    return tuple(dict.fromkeys(filter(None, said)))


def as_text(comparison: Comparison) -> str:
    """The sentence to quote, then a table of the tasks."""
    shown = comparison.shown
    rows = [
        [task, shown(pair[0]), shown(pair[1]), f"{'+' if pair[1] >= pair[0] else ''}{shown(pair[1] - pair[0])}"]
        for task, pair in comparison.by_task.items()
    ]
    header = [comparison.metric, "A", "B", f"B - A{' (points)' if comparison.is_accuracy else ''}"]
    names = f"A: {comparison.first} ({comparison.files[0]})\nB: {comparison.second} ({comparison.files[1]})"
    parts = [names, sentence(comparison)]
    if comparison.is_accuracy and comparison.over_questions is None:
        parts.append("For an interval over questions, run both with lm_eval's --log_samples.")
    if not comparison.noise:
        parts.append(UNMEASURED)
    return "\n\n".join([*parts, markdown_table(header, rows)])


def sentence(comparison: Comparison) -> str:
    """What a reader can quote: the difference in points, both intervals, and the test on the answers."""
    first, second, over = comparison.first, comparison.second, comparison.over_tasks
    n_tasks, unit = len(comparison.by_task), " points" if comparison.is_accuracy else ""
    above = "above" if over.mean > 0 else "below"
    than = f"{comparison.shown(abs(over.mean))}{unit} {above}" if over.mean else "level with"
    tasks = next(iter(comparison.by_task)) if n_tasks == 1 else f"{n_tasks} tasks"
    on = f"on {tasks} ({comparison.metric}, {comparison.n_questions} questions)"
    if comparison.is_equal:
        return f"{second} equals {first} {on}: every question has the same score in both."
    parts = [f"{second} is {than} {first} {on}"]
    of_suite = any(map(suite_task, comparison.by_task))
    questions = "over sets of questions" if of_suite else "over questions"
    intervals = [(comparison.over_questions, questions)] if comparison.over_questions else []
    intervals += [(over, "for other word rules" if of_suite else "over tasks")] if over.low is not None else []
    bands = [_band(comparison, interval, what) for interval, what in intervals]
    parts += [f"the 95% interval is {' and '.join(bands)}"] if bands else []
    if answers := comparison.answers:
        questions = f"{answers.only_second} question{' is' if answers.only_second == 1 else 's are'}"
        parts.append(
            f"{questions} right with {second} alone, {answers.only_first} with {first} alone "
            f"(McNemar, {'p < 0.001' if answers.p < 0.001 else f'p = {answers.p:.3f}'})"
        )
    return "; ".join([*parts, *comparison.noise]) + "."


def _band(comparison: Comparison, interval: Interval, over: str) -> str:
    """Above, or below where the sentence says so."""
    sign = 1 if comparison.over_tasks.mean >= 0 else -1
    low, high = sorted(sign * end for end in (interval.low or 0.0, interval.high or 0.0))
    chance = "" if interval.is_significant else " (not significant)"
    return f"{comparison.shown(low)} to {comparison.shown(high)} {over}{chance}"


def _check_same(what: str, *found: object) -> None:
    known = {one for one in found if one is not None}  # other models record no hash of the suite
    if len(known) > 1:
        values = " and ".join(map(str, found))
        raise UnusableFile(f"the {what} differs: {values}; compare results of the same questions")


def _comparison(
    names: Sequence[str],
    tasks: Sequence[tuple[TaskResult, TaskResult]],
    metric: str,
    answers: Sequence[Mapping[str, Mapping[str, Sequence[Answer]]]],
    shares: Sequence[Mapping[tuple[str, str], Score | None]],
) -> Comparison:
    measured = [pair for pair in tasks if all(metric in one.metrics for one in pair)]
    by_task = {one.name: (one.metrics[metric], other.metrics[metric]) for one, other in measured}
    found = [[one for name in by_task if (one := own[name, metric]) and one.parts] for own in shares]
    is_whole = all(len(own) == len(by_task) for own in found)
    pairs = [pair for name in by_task for pair in _paired(name, metric, answers)] if is_whole else []
    is_accuracy = all(one.is_accuracy(metric) for pair in measured for one in pair)
    n_questions = sum(one.n_questions for one, _ in measured)
    return Comparison(
        first=names[0],
        second=names[1],
        metric=metric.removesuffix(",none"),
        is_accuracy=is_accuracy,
        by_task=by_task,
        n_questions=n_questions,
        over_tasks=_over_tasks(by_task, n_questions, is_share=is_accuracy),
        over_questions=difference(*map(mean_of_tasks, found)) if is_whole else None,
        is_equal=is_whole and all(one == other for one, other in pairs),
        answers=mcnemar(pairs) if is_whole and all(score in (0, 1) for pair in pairs for score in pair) else None,
    )


def _paired(
    task: str, metric: str, answers: Sequence[Mapping[str, Mapping[str, Sequence[Answer]]]]
) -> list[tuple[float, float]]:
    """The scores of each question in both runs."""
    first, second = (dict(own[task][metric]) for own in answers)
    if first.keys() != second.keys():
        raise UnusableFile(f"the samples of {task} are not of the same questions, so they cannot be compared")
    return [(score, second[question]) for question, score in first.items()]


def _over_tasks(by_task: Mapping[str, tuple[float, float]], n_questions: int, *, is_share: bool) -> Interval:
    if not is_share:
        return interval_over_tasks({task: second - first for task, (first, second) in by_task.items()})
    first, second = ({task: scores[n] for task, scores in by_task.items()} for n in (0, 1))
    return difference(score_over_rules(first, n_questions), score_over_rules(second, n_questions))


def labels(files: Sequence[ResultFile], tasks: Sequence[Sequence[TaskResult]]) -> list[str]:
    """Model and adapter of each file, and the settings in which it differs from the other on any task."""
    words = [dict.fromkeys(word for pair in tasks for word in _words(file, pair[n])) for n, file in enumerate(files)]
    found = []
    for file, own, other in zip(files, words, words[::-1], strict=True):
        name = f"{file.model} with {file.adapter}" if file.adapter else file.model
        found.append(", ".join([name, *(word for word in own if word not in other)]))
    return found


def _words(file: ResultFile, result: TaskResult) -> list[str]:
    """What a task's score depends on beside the checkpoint: options in effect, prompts, loading."""
    options = {
        f"{name}={value}" for name, value in result.options.items() if name != "early_exit" and value is not None
    }
    given = {name: value for name, value in result.metadata.items() if name.startswith("fewshot_")}
    given |= {"fewshot_seed": file.config.get("fewshot_seed")} if "fewshot_seed" not in given else {}
    generation = result.config.get("generation_kwargs") or {}
    given |= {name: generation[name] for name in ("until", "do_sample") if name in generation}
    given |= {"shots": result.shots, "chat template": file.chat_template, "model": file.model_kind}
    given |= {"prompts cut off": result.truncated_prompts}
    words = [word for word in setting_of(file, result) if word.partition("=")[0] not in result.options]
    return [*sorted(options), *words, *(f"{name}={value}" for name, value in given.items() if value is not None)]
