"""`mdlm-leaderboard compare`: two result files of the same tasks, by question where their samples lie beside them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mdlm_leaderboard.checkpoint import checkpoint_of, names_of
from mdlm_lm_eval.results.asked import options_of
from mdlm_lm_eval.results.files import UnusableFile, naming
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, read_result_file, unusable_if_different
from mdlm_lm_eval.results.samples import Question, read_scores, samples_path
from mdlm_lm_eval.results.statistics import Interval, McNemar, mcnemar, paired_bootstrap, paired_interval


@dataclass(frozen=True)
class Comparison:
    """One metric of two runs. All intervals are of `second - first` on the same tasks or questions.

    is_accuracy: whether scores are shares from 0 to 1, whose differences are told in percentage points.
    by_task: task -> both scores.
    over_tasks: mean over tasks with the t interval of the differences per task.
    over_questions: the same mean with the paired bootstrap's interval within tasks, None without samples, and where a
        score is no mean of theirs, such as a perplexity.
    answers: right answers that only one of them gives, None without samples or where scores are not right or wrong.
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

    def shown(self, score: float) -> str:
        """In percent where it is an accuracy."""
        return f"{100 * score:.1f}" if self.is_accuracy else f"{score:.4g}"


@unusable_if_different()
def compare(first: Path, second: Path) -> list[Comparison]:
    """One comparison for every metric that both files have. Raises UnusableFile where they cannot be compared."""
    files = [_read(path) for path in (first, second)]
    shared = [name for name in files[0].tasks if name in files[1].tasks]
    if not shared:
        raise UnusableFile(f"{str(first)!r} and {str(second)!r} have no task in common")
    _check_same("state of the suite", *(file.suite_hash for file in files))
    for name in shared:
        _check_same(f"version of {name}", *(file.tasks[name].version for file in files))
        _check_same(f"number of questions of {name}", *(file.tasks[name].n_questions for file in files))
        _check_same(f"fewshot_seed of {name}", *(file.tasks[name].metadata.get("fewshot_seed") for file in files))
    samples = {name: _samples(first, second, name) for name in shared}
    labels = _labels(files[0], files[1], shared)
    metrics = dict.fromkeys(
        m for name in shared for m in files[0].tasks[name].metrics if m in files[1].tasks[name].metrics
    )
    if not metrics:
        raise UnusableFile(f"{str(first)!r} and {str(second)!r} have no metric in common on the same task")
    return [_comparison(labels, files, metric, shared, samples) for metric in metrics]


def as_text(comparison: Comparison) -> str:
    """The sentence to quote, then a table of the tasks."""
    shown = comparison.shown
    rows = [
        [task, shown(pair[0]), shown(pair[1]), f"{'+' if pair[1] >= pair[0] else ''}{shown(pair[1] - pair[0])}"]
        for task, pair in comparison.by_task.items()
    ]
    header = [comparison.metric, "A", "B", f"B - A{' (points)' if comparison.is_accuracy else ''}"]
    names = f"A: {comparison.first}\nB: {comparison.second}"
    return f"{names}\n\n{sentence(comparison)}\n\n{markdown_table(header, rows)}"


def sentence(comparison: Comparison) -> str:
    """What a reader can quote: the difference in points, both intervals, and the test on the answers."""
    first, second, over = comparison.first, comparison.second, comparison.over_tasks
    n_tasks, unit = len(comparison.by_task), " points" if comparison.is_accuracy else ""
    above = "above" if over.mean > 0 else "below"
    than = f"{comparison.shown(abs(over.mean))}{unit} {above}" if over.mean else "level with"
    tasks = next(iter(comparison.by_task)) if n_tasks == 1 else f"{n_tasks} tasks"
    parts = [f"{second} is {than} {first} on {tasks} ({comparison.metric}, {comparison.n_questions} questions)"]
    intervals = [(over, "over tasks")] if n_tasks > 1 else []
    intervals += [(comparison.over_questions, "over questions")] if comparison.over_questions else []
    bands = [_band(comparison, interval, what) for interval, what in intervals]
    parts += [f"the 95% interval is {' and '.join(bands)}"] if bands else []
    if answers := comparison.answers:
        questions = f"{answers.only_second} question{' is' if answers.only_second == 1 else 's are'}"
        parts.append(
            f"{questions} right with {second} alone, {answers.only_first} with {first} alone "
            f"(McNemar, {'p < 0.001' if answers.p < 0.001 else f'p = {answers.p:.3f}'})"
        )
    return "; ".join(parts) + "."


def _band(comparison: Comparison, interval: Interval, over: str) -> str:
    """Above, or below where the sentence says so."""
    assert interval.low is not None
    assert interval.high is not None
    low, high = sorted(end if comparison.over_tasks.mean >= 0 else -end for end in (interval.low, interval.high))
    chance = " (within chance)" if low <= 0 <= high else ""
    return f"{comparison.shown(low)} to {comparison.shown(high)} {over}{chance}"


def _read(path: Path) -> ResultFile:
    with naming(path):
        return read_result_file(path)


def _check_same(what: str, *found: object) -> None:
    known = [one for one in found if one is not None]  # other models record no hash of the suite
    if len(set(known)) > 1:
        raise UnusableFile(
            f"the {what} differs: {' and '.join(map(str, known))}; compare results of the same questions"
        )


def _samples(first: Path, second: Path, task: str) -> Mapping[str, list[tuple[float, float]]]:
    """Metric -> both scores of every question; empty where either file has no samples of the task."""
    paths = samples_path(first, task), samples_path(second, task)
    if paths[0] is None or paths[1] is None:
        return {}
    ours, theirs = read_scores(paths[0]), read_scores(paths[1])
    return {metric: _pairs(ours[metric], theirs[metric], task) for metric in ours if metric in theirs}


def _pairs(first: Mapping[Question, float], second: Mapping[Question, float], task: str) -> list[tuple[float, float]]:
    if first.keys() != second.keys():
        raise UnusableFile(f"the samples of {task} are not of the same questions, so that they cannot be compared")
    return [(first[question], second[question]) for question in first]


def _comparison(
    labels: tuple[str, str],
    files: list[ResultFile],
    metric: str,
    shared: Iterable[str],
    samples: Mapping[str, Mapping[str, list[tuple[float, float]]]],
) -> Comparison:
    first, second = (
        {name: file.tasks[name].metrics[metric] for name in shared if metric in file.tasks[name].metrics}
        for file in files
    )
    names = [name for name in first if name in second]
    pairs = {
        name: of_task
        for name in names
        if (of_task := samples[name].get(metric)) and _are_means((first[name], second[name]), of_task)
    }
    is_whole = len(pairs) == len(names)
    is_right_or_wrong = is_whole and all(
        score in (0, 1) for of_task in pairs.values() for pair in of_task for score in pair
    )
    return Comparison(
        *labels,
        metric=metric.removesuffix(",none"),
        is_accuracy=all(file.tasks[name].is_accuracy(metric) for file in files for name in names),
        by_task={name: (first[name], second[name]) for name in names},
        n_questions=sum(files[0].tasks[name].n_questions for name in names),
        over_tasks=paired_interval({name: first[name] for name in names}, {name: second[name] for name in names}),
        over_questions=paired_bootstrap(pairs) if is_whole else None,
        answers=mcnemar(pair for of_task in pairs.values() for pair in of_task) if is_right_or_wrong else None,
    )


def _are_means(scores: tuple[float, float], pairs: Sequence[tuple[float, float]]) -> bool:
    return all(
        math.isclose(score, fmean(of), rel_tol=1e-6, abs_tol=1e-9)
        for score, of in zip(scores, zip(*pairs, strict=True), strict=True)
    )


def _labels(first: ResultFile, second: ResultFile, shared: list[str]) -> tuple[str, str]:
    """Model and adapter, and the settings in which the two runs differ on any task."""
    settings = [[_settings(file, file.tasks[name]) for name in shared] for file in (first, second)]
    different: dict[str, list[int]] = {}  # option -> the tasks in which it differs
    for n, (one, other) in enumerate(zip(*settings, strict=True)):
        for option in {**one, **other}:
            if one.get(option) != other.get(option):
                different.setdefault(option, []).append(n)
    checkpoints = checkpoint_of(first), checkpoint_of(second)
    is_loaded_alike = checkpoints[0].loading == checkpoints[1].loading
    names = names_of(checkpoints)
    cut = [sum(file.tasks[name].truncated_prompts for name in shared) for file in (first, second)]
    labels = []
    for checkpoint, of, n_cut in zip(checkpoints, settings, cut, strict=True):
        model, adapter = names[checkpoint]
        facts = [] if is_loaded_alike else [checkpoint.loading]
        for option, tasks in different.items():
            facts.append(f"{option}={' and '.join(dict.fromkeys(str(of[n].get(option)) for n in tasks))}")
        facts += [f"prompts cut off={n_cut}"] if cut[0] != cut[1] else []
        labels.append(", ".join([model + (f" with {adapter}" if adapter else ""), *filter(None, facts)]))
    return labels[0], labels[1]


def _settings(file: ResultFile, result: TaskResult) -> dict[str, object]:
    """What a task's score depends on beside the checkpoint."""
    given = dict(result.generation)
    if file.mdlm is not None:
        given |= options_of(file, result) if result.output_type == "generate_until" else file.mdlm["likelihood"]
    given["fewshot_seed"] = file.run_options["fewshot_seed"]  # of standard benchmarks; the suite has its own
    given["fewshot_as_multiturn"] = file.chat_template and file.fewshot_as_multiturn
    given |= {name: value for name, value in result.metadata.items() if name.startswith("fewshot_")}
    return given | {"shots": result.shots, "chat template": file.chat_template, "model": file.model_kind}
