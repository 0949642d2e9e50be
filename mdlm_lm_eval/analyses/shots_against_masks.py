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

from mdlm_lm_eval.analyses.report import Row, over_tasks
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.names import recorded_name
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, find_result_files, read_result_file

METRIC = "exact_match,none"


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
            what = f"{score.task} of {score.model} at {score.shots} shots and {score.n_masks} masks"
            raise OptionError(f"{known.file} and {score.file} disagree on {what}; leave one of them out")
    rows = []
    for model, task in sorted({(score.model, score.task) for score in compared}):
        settings = ((few_shots, few_masks), (many_shots, few_masks), (many_shots, many_masks))
        found = [cells[key] for setting in settings if (key := (model, task, *setting)) in cells]
        if len(found) < len(settings):
            continue
        few, many, distracted = found
        if len({score.questions for score in found}) > 1:
            where = ", ".join(f"{score.questions} in {score.file}" for score in found)
            raise OptionError(f"{task} of {model} was scored on different numbers of questions: {where}")
        row = {"model": model, "task": task, "few_shots": few_shots, "many_shots": many_shots}
        row |= {"few_masks": few_masks, "many_masks": many_masks, "questions": few.questions}
        rows.append(row | {"gain": many.accuracy - few.accuracy, "loss": many.accuracy - distracted.accuracy})
    if not rows:
        pairs = sorted({(score.shots, score.n_masks) for score in scores})
        raise OptionError(
            f"no task has scores at {few_shots} and {many_shots} shots with {few_masks} masks and at {many_shots} "
            f"shots with {many_masks} masks; found are {'; '.join(f'{s} shots with {m} masks' for s, m in pairs)}"
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
        row = {"model": gain["model"], "tasks": gain["tasks"], "gain": gain["gain"], "gain_band": gain["band"]}
        summary.append(row | {"loss": loss["loss"], "loss_band": loss["band"], "pearson_r": r})
    return summary


def _check_conditions(scores: Sequence[Score]) -> None:
    """Raises OptionError where two scores of one model do not compare."""
    known: dict[tuple[str, str], Score] = {}
    for score in scores:
        for name, value in score.conditions.items():
            first = known.setdefault((score.model, name), score)
            if first.conditions[name] != value:
                files = f"{first.file} and {score.file}, both of {score.model}, do not compare"
                raise OptionError(f"{files} ({name}: {first.conditions[name]} and {value}); leave one of them out")


def _scores_of(file: ResultFile) -> list[Score]:
    if file.mdlm is None:
        raise UnusableFile("is no result of --model mdlm")
    scores = []
    for task, result in file.tasks.items():
        options: dict[str, Any] = next((each["options"] for each in file.mdlm["settings"] if task in each["tasks"]), {})
        few, many = result.effective.get("asked_masks", (0, 1))
        if METRIC in result.metrics and few == many:  # a share of the prompt is no mask count
            model, conditions = _model(file, options), _conditions(file, result, options)
            accuracy = result.metrics[METRIC]
            scores.append(Score(model, task, result.shots, few, result.n_questions, accuracy, file.path, conditions))
    return scores


def _model(file: ResultFile, options: Mapping[str, Any]) -> str:
    """Checkpoint and adapter, and the decoding options that a user set, apart from the mask count."""
    recorded = file.mdlm or {}
    names = [recorded_name(name) for name in (recorded["pretrained"], recorded["adapter"]) if name]
    given = options.keys() & {*recorded["explicit_options"], *file.gen_kwargs} - {"n_masks"}
    return " ".join(["+".join(names), *(f"{option}={options[option]}" for option in sorted(given))])


def _conditions(file: ResultFile, result: TaskResult, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a score depends on beside what `_model` names. Numbers of questions are compared elsewhere."""
    recorded, settings = file.mdlm or {}, result.metadata
    conditions = {
        **{name: recorded.get(name) for name in ("weights", "adapter_weights", "dtype")},
        **{name: file.model_args.get(name) for name in ("load_in_4bit", "load_in_8bit", "quantization_config")},
        "chat template": file.chat_template,
        "system_instruction": file.system_instruction,
        "seed": options.get("seed"),
        "lm_eval's few-shot seed": file.run_options["fewshot_seed"],
        f"version of {result.name}": result.version,
    }
    if "fewshot_seed" in settings:  # a task of the suite, of which one number of shots can be several mixtures
        conditions[f"hash of the suite of {result.name}"] = file.suite_hash
        conditions[f"fewshot_seed of {result.name}"] = settings["fewshot_seed"]
        for name in ("fewshot_relevant", "fewshot_distractors"):
            conditions[f"{name} of {result.name} at {result.shots} shots"] = settings[name]
    return conditions
