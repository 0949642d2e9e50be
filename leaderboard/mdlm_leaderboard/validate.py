"""`mdlm-leaderboard validate`: finds the problems that prevent a submission."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from mdlm_leaderboard.scores import TOLERANCE, file_scores
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.result_file import UNKNOWN, ResultFile, TaskResult, read_result_file
from mdlm_lm_eval.results.suite import current_version, task_names
from mdlm_lm_eval.tasks import questions, rule_sets

# Records of `--model mdlm` that others need to repeat a run and to distinguish checkpoints.
_RECORDED = ("decoding", "likelihood", "family", "pretrained", "weights", "package_version", "device", "task_suite")
_OF_SERVER = ("settings", "family", "pretrained", "package_version", "task_suite")  # it holds the weights


def problems_of(path: Path) -> list[str]:
    """The problems of a file, each as one sentence; an empty list if it can be submitted."""
    left_out: list[tuple[str, str]] = []
    try:
        file = read_result_file(path)
        list(file_scores(file, left_out))
    except UnusableFile as error:
        return [str(error)]
    return [*(reason for _, reason in left_out), *_problems(file)]


def _problems(file: ResultFile) -> Iterator[str]:
    if file.limit is not None:
        yield f"--limit {file.limit:g} leaves out questions; a submission answers all"
    if not file.mdlm and file.model == file.model_kind:
        yield "names no model; run it with --model_args pretrained=..."
    by_group: dict[str, dict[str, TaskResult]] = {}
    for result in file.tasks.values():
        if task := result.suite:
            by_group.setdefault(task.group, {})[task.task] = result
    for name in () if not file.mdlm else _OF_SERVER if file.server else _RECORDED:
        if not file.mdlm.get(name) and (by_group or name != "task_suite"):
            yield f"does not record {name!r} of --model {file.model_kind}"
    if file.server.get("version") == UNKNOWN:
        yield "does not record the engine's version; run it with --model_args engine_version=..."
    if file.mdlm and file.suite_hash is None and by_group:
        yield "does not record the suite's sha256"
    for group, results in by_group.items():
        yield from _group_problems(file, group, results)


def _group_problems(file: ResultFile, group: str, results: Mapping[str, TaskResult]) -> Iterator[str]:
    if missing := sorted(task_names() - results.keys()):
        yield f"{group} lacks {len(missing)} of its {len(task_names())} tasks: {', '.join(missing)}"
    for result in results.values():
        if result.version != current_version():
            yield f"{result.name} is of suite version {result.version!r}; it must be {current_version()}"
        asked = rule_sets if result.name.startswith("mdlm_rules_") else questions
        if result.n_original != asked.N_TEST_QUESTIONS:
            yield f"{result.name} has {result.n_original} questions; it must have {asked.N_TEST_QUESTIONS}"
        score = result.metrics["exact_match,none"]
        right = score * result.n_questions
        if abs(right - round(right)) > 1e-6:
            yield f"{result.name} has exact_match={score}, which {result.n_questions} answers cannot give"
    reported = file.group_results[group].metrics.get("exact_match,none") if group in file.group_results else None
    mean = fmean(result.metrics["exact_match,none"] for result in results.values())
    if reported is not None and abs(reported - mean) > TOLERANCE:
        yield f"{group} reports {reported}, its tasks' mean is {mean}"
