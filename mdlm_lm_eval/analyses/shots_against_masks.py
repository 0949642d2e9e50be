"""What a task gains from more shots against what it loses to more masks (paper, figure 20; E12).

Reads lm-eval result files alone. Gain: accuracy at many shots minus accuracy at few, both at few masks. Loss: accuracy
at few masks minus accuracy at many, both at many shots; at which number of shots the paper took its losses it does not
say.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import StatisticsError, correlation
from typing import Any

from mdlm_lm_eval.analyses.output import Row, over_tasks
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.asked import asked_masks, options_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.names import recorded_name
from mdlm_lm_eval.results.result_file import (
    ResultFile,
    TaskResult,
    find_result_files,
    read_result_file,
    unusable_if_different,
)

METRIC = "exact_match,none"
_QUANTISATION = ("load_in_4bit", "load_in_8bit", "quantization_config")


@dataclass(frozen=True)
class Score:
    """Accuracy of one task under one setting, and where it was read.

    `conditions` have names, each of which has one value in all scores of a model that are compared.
    """

    model: str
    task: str
    shots: int
    n_masks: int
    questions: int
    accuracy: float
    file: str
    conditions: Mapping[str, Any]


def read_scores(paths: Iterable[Path]) -> list[Score]:
    """Scores in all result files of `--model mdlm` at or below `paths`; other files are named and left out.

    Raises OptionError for a path that is not there.
    """
    scores: list[Score] = []
    for path in paths:
        if not path.exists():
            raise OptionError(f"{path}: no such file or folder")
        for file in find_result_files(path) if path.is_dir() else [path]:
            try:
                # Those of a sweep all have one name.
                name = file.relative_to(path).as_posix() if path.is_dir() else file.name
                scores += _scores_of(read_result_file(file, name))
            except UnusableFile as error:
                print(f"left out {file}: {error}", file=sys.stderr)
    return scores


def gains_and_losses(scores: Sequence[Score], *, shots: tuple[int, int], masks: tuple[int, int]) -> list[Row]:
    """One row for each model and task of which all three accuracies are there.

    `shots` and `masks` are (few, many). Raises OptionError where two files were made under different conditions or
    disagree on an accuracy, or the three of a task were taken on different numbers of questions.
    """
    (few_shots, many_shots), (few_masks, many_masks) = shots, masks
    needed = {(few_shots, few_masks), (many_shots, few_masks), (many_shots, many_masks)}
    compared = [score for score in scores if (score.shots, score.n_masks) in needed]
    _check_conditions(compared)
    cells: dict[tuple[str, str, int, int], Score] = {}
    for score in compared:
        key = score.model, score.task, score.shots, score.n_masks
        known = cells.setdefault(key, score)
        if known.accuracy != score.accuracy:
            raise OptionError(
                f"{known.file} and {score.file} disagree on {score.task} of {score.model} at {score.shots} shots and "
                f"{score.n_masks} masks: {known.accuracy:.4f} and {score.accuracy:.4f}; leave one of them out"
            )
    rows = []
    for model, task in sorted({(score.model, score.task) for score in compared}):
        wanted = [(few_shots, few_masks), (many_shots, few_masks), (many_shots, many_masks)]
        found = [cells.get((model, task, *setting)) for setting in wanted]
        few, many, distracted = found
        if few is None or many is None or distracted is None:
            continue
        if len({few.questions, many.questions, distracted.questions}) > 1:
            raise OptionError(
                f"{task} of {model} was scored on {few.questions}, {many.questions} and {distracted.questions} "
                f"questions ({few.file}, {many.file}, {distracted.file}); it must be one number"
            )
        rows.append(
            {
                "model": model,
                "task": task,
                "few_shots": few_shots,
                "many_shots": many_shots,
                "few_masks": few_masks,
                "many_masks": many_masks,
                "questions": few.questions,
                "gain": many.accuracy - few.accuracy,
                "loss": many.accuracy - distracted.accuracy,
            }
        )
    if not rows:
        raise OptionError(
            f"no task has scores at {few_shots} and {many_shots} shots with {few_masks} masks and at {many_shots} "
            f"shots with {many_masks} masks; found are {_found(scores)}"
        )
    return rows


def by_model(rows: Sequence[Row]) -> list[Row]:
    """Mean gain and loss of each model with the half width of their 95% t intervals over tasks, and Pearson's r.

    A band is None for a single task, r for fewer than three tasks or where one side does not vary.
    """
    summary = []
    for gain, loss in zip(*(over_tasks(rows, name, ["model"]) for name in ("gain", "loss")), strict=True):
        own = [row for row in rows if row["model"] == gain["model"]]
        try:
            r = correlation([row["gain"] for row in own], [row["loss"] for row in own]) if len(own) > 2 else None
        except StatisticsError:
            r = None
        summary.append(
            {
                "model": gain["model"],
                "tasks": gain["tasks"],
                "gain": gain["gain"],
                "gain_band": gain["band"],
                "loss": loss["loss"],
                "loss_band": loss["band"],
                "pearson_r": r,
            }
        )
    return summary


def _check_conditions(scores: Sequence[Score]) -> None:
    """Raises OptionError where two scores of one model do not compare."""
    known: dict[tuple[str, str], Score] = {}
    for score in scores:
        for name, value in score.conditions.items():
            first = known.setdefault((score.model, name), score)
            if first.conditions[name] != value:
                raise OptionError(
                    f"{first.file} and {score.file}, both of {score.model}, do not compare ({name}: "
                    f"{first.conditions[name]} and {value}); leave one of them out"
                )


def _scores_of(file: ResultFile) -> list[Score]:
    if file.mdlm is None:
        raise UnusableFile("is no result of --model mdlm")
    with unusable_if_different():
        conditions = _conditions(file)
    scores = []
    for task, result in file.tasks.items():
        with unusable_if_different():
            model = _model(file, result)
        few, many = asked_masks(file, result) if "masks" in result.effective else (0, 1)
        if METRIC in result.metrics and few == many:  # a share of the prompt is no mask count
            accuracy, of_task = result.metrics[METRIC], conditions | _conditions_of_task(file, result)
            scores.append(Score(model, task, result.shots, few, result.n_questions, accuracy, file.path, of_task))
    return scores


def _conditions(file: ResultFile) -> dict[str, Any]:
    """What a run's scores depend on beside what `_model` names. How many questions there were is compared by itself."""
    recorded = file.mdlm or {}
    return {
        "dtype": file.dtype,
        **{name: file.model_args.get(name) for name in _QUANTISATION},
        "weights": recorded.get("weights"),
        "adapter weights": recorded.get("adapter_weights"),
        "chat template": file.chat_template,
        "system_instruction": file.system_instruction,
        "seed": recorded["decoding"].get("seed"),
        "lm_eval's few-shot seed": file.run_options["fewshot_seed"],
    }


def _conditions_of_task(file: ResultFile, result: TaskResult) -> dict[str, Any]:
    settings = result.metadata
    conditions: dict[str, Any] = {f"version of {result.name}": result.version}
    if "fewshot_seed" in settings:  # a task of the suite, of which one number of shots can be several mixtures
        conditions[f"hash of the suite of {result.name}"] = file.suite_hash
        conditions[f"fewshot_seed of {result.name}"] = settings["fewshot_seed"]
        for name in ("fewshot_relevant", "fewshot_distractors"):
            conditions[f"{name} of {result.name} at {result.shots} shots"] = settings[name]
    return conditions


def _model(file: ResultFile, result: TaskResult) -> str:
    """Checkpoint and adapter, and what of the decoding a user set and is no mask count."""
    assert file.mdlm is not None
    decoding = options_of(file, result)
    given = decoding.keys() & {*file.mdlm["explicit_options"], *file.gen_kwargs} - {"n_masks"}
    settings = [f"{option}={decoding[option]}" for option in sorted(given)]
    return " ".join(["+".join(recorded_name(name) for name in file.folders if name), *settings])


def _found(scores: Sequence[Score]) -> str:
    settings = sorted({(score.shots, score.n_masks) for score in scores})
    return "; ".join(f"{shots} shots with {masks} masks" for shots, masks in settings) or "no scores at all"
