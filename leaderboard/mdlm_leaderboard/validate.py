"""`mdlm-leaderboard validate`: what stands in the way of a submission."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from mdlm_lm_eval.tasks.questions import N_TEST_QUESTIONS

from mdlm_leaderboard.checkpoint import checkpoint_of
from mdlm_leaderboard.collect import TOLERANCE
from mdlm_leaderboard.scores import file_scores
from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.privacy import published
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, find_result_files, read_result_file
from mdlm_lm_eval.results.suite import current_version, suite_task, task_names

# What `--model mdlm` records, without which nobody could run it again.
_RECORDED = ("decoding", "likelihood", "family", "pretrained", "package_version", "device", "task_suite")


def files_of(path: Path) -> list[Path]:
    """Every `*.json` file below a folder; of anything else, itself."""
    return find_result_files(path) if path.is_dir() else [path]


def problems_of(path: Path) -> list[str]:
    """Every problem in one sentence; an empty list for a file that can be submitted."""
    try:
        file = read_result_file(path)
        left_out = file_scores(file).left_out
    except UnusableFile as error:
        return [str(error)]
    content = read_json(path)
    recorded = content["config"].items()
    private = [repr(name) for name, value in recorded if published({name: value}) != {name: value}]
    for task, config in content["configs"].items():
        # lm-eval puts all model arguments there, too, and where it is installed, which nothing can be done about.
        metadata = dict(config.get("metadata") or {}, config_source="")
        private += [f"the metadata of {task!r}"] * (published(metadata) != metadata)
    return [
        *left_out,
        *_problems(file),
        *(f"holds a secret or a folder of your machine in {where}" for where in private),
    ]


def _problems(file: ResultFile) -> Iterator[str]:
    if file.limit is not None:
        yield f"--limit {file.limit:g} leaves out questions; a submission answers all"
    if not file.date:
        yield "names no date"
    for name in ("lm_eval", "transformers"):
        if name not in file.versions:
            yield f"names no version of {name}"
    yield from _settings_problems(file)
    by_group: dict[str, dict[str, TaskResult]] = {}
    for result in file.tasks.values():
        if task := suite_task(result.name):
            by_group.setdefault(task.group, {})[task.task] = result
    for group, results in by_group.items():
        yield from _group_problems(group, results)
    yield from _mean_problems(file, by_group)


def _settings_problems(file: ResultFile) -> Iterator[str]:
    if file.mdlm is not None:
        for name in _RECORDED:
            if name not in file.mdlm:
                yield f"does not record {name!r} of --model mdlm"
        if file.suite_hash is None and any(map(suite_task, file.tasks)):
            yield "does not record the suite's sha256 of --model mdlm"
    elif checkpoint_of(file).model == file.model_kind:
        yield "names no model; run it with --model_args pretrained=..."


def _group_problems(group: str, results: dict[str, TaskResult]) -> Iterator[str]:
    if missing := sorted(task_names() - results.keys()):
        yield f"{group} lacks {len(missing)} of its {len(task_names())} tasks: {', '.join(missing)}"
    for result in results.values():
        if result.version != current_version():
            yield f"{result.name} is of suite version {result.version!r}; it must be {current_version()}"
        if result.n_original != N_TEST_QUESTIONS:
            yield f"{result.name} has {result.n_original} questions; it must have {N_TEST_QUESTIONS}"
        right = result.metrics["exact_match,none"] * result.n_questions
        if abs(right - round(right)) > 1e-6:
            yield (
                f"{result.name} has exact_match={result.metrics['exact_match,none']}, "
                f"which is no whole number of right answers to {result.n_questions} questions"
            )


def _mean_problems(file: ResultFile, by_group: dict[str, dict[str, TaskResult]]) -> Iterator[str]:
    for group, results in by_group.items():
        reported = file.group_results.get(group)
        if reported is None or "exact_match,none" not in reported.metrics:
            continue
        mean = fmean(result.metrics["exact_match,none"] for result in results.values())
        if abs(reported.metrics["exact_match,none"] - mean) > TOLERANCE:
            yield f"{group} reports {reported.metrics['exact_match,none']}, its tasks' mean is {mean}"
