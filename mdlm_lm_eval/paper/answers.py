"""Reads the answers of the few-shot suite from result files: for each model, condition and task, a sign a question."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdlm_lm_eval.results.deviations import MASKS, deviations_of
from mdlm_lm_eval.results.files import UnusableFile, check_inside, read_json, write_whole
from mdlm_lm_eval.results.frame import read_folder
from mdlm_lm_eval.results.names import without_shared
from mdlm_lm_eval.results.recorded import ANALYSIS, LOOKS, PLAN, check_types
from mdlm_lm_eval.results.redaction import redacted
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, leaves
from mdlm_lm_eval.results.samples import SHARES
from mdlm_lm_eval.results.suite import SUITE_METRIC, SuiteTask, suite_task, task_names
from mdlm_lm_eval.results.text import printable
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

_IN_CONDITION = MASKS | {"steps", "steps_per_block", "unmasking", "n_fillers", "filler"}
_TRUE_LABELS = "true"
_LOOKS = "looks.json"  # beside a plan
_OF_PROMPTS = ("fewshot_seed", "fewshot_template")
# Settings of a sweep's cell that decide a model's logits, beside its weights and loading arguments.
_OF_LOGITS = ("model", "adapter_weights", "plugins", "apply_chat_template", "system_instruction", "task_suite")
#: The paper's other tasks: groups, and a task.
BESIDE = (
    "mdlm_single_token",
    "mdlm_hotpotqa",
    "mdlm_classification_random",
    "mdlm_classification_nearest_first",
    "mdlm_classification_nearest_last",
)
#: Analysis -> the task that a report draws it for, what identifies a row within a task, and the row's values.
_ANALYSED = {
    "attribution_groups": ("mdlm_context", ("question", "group"), ("gradient",)),
    "attribution_examples": ("mdlm_slot", ("reordering", "place"), ("gradient",)),
    "confidence": ("mdlm_context", ("question", "n_masks"), ("confidence", "entropy")),
}


@dataclass(frozen=True)
class Condition:
    """The variables of the paper's experiments. Two answers to a question under equal conditions are the same.

    asks: mdlm_context or mdlm_rules, or a name of `BESIDE`.
    question: place of the question beside its examples; "" where they are mixed.
    position: number of distractors before the block of relevant examples; None where they are mixed.
    masks: masks after the text, 0 for an autoregressive model; None where they are a share of the prompt.
    share: that share.
    steps: denoising steps, as asked; "auto" counts as the number taken. order: of unmasking, "" for one step.
    """

    asks: str = "mdlm_context"
    is_slot: bool = False
    question: str = ""
    position: int | None = None
    masks: int | None = 0
    share: float | None = None
    dots: int = 0
    steps: int = 1
    order: str = ""
    relevant: int = DEFAULT_SETTINGS["fewshot_relevant"]
    distractors: int = DEFAULT_SETTINGS["fewshot_distractors"]
    labels: str = _TRUE_LABELS


@dataclass(frozen=True)
class Answers:
    """The answers to one task's questions, in the order of its documents.

    accuracy: share of right answers, of lm-eval.
    letters: a sign for each question's first token (`LabelTokens.letter`); "" for a model that records none.
    disputed: whether another file has other answers to the same questions.
    """

    accuracy: float
    n: int
    letters: str = ""
    disputed: bool = False

    def are(self, share: str) -> NDArray[np.float64]:
        """Whether each answer counts to a share of `SHARES`, [N] of 0 and 1."""
        return np.isin([*self.letters], [*SHARES[share]]).astype(float)

    def cut(self, n: int) -> "Answers":
        """The first `n` answers. Those without letters cannot be cut, and stay."""
        if n >= self.n or not self.letters:
            return self
        letters = self.letters[:n]
        return Answers(letters.count("R") / n, n, letters)


@dataclass(frozen=True)
class Plan:
    """What a run of `mdlm-sweep --config paper` is going to ask (`plan.json`).

    missing: the cells without a result. looks: dates of reports that were made while there were such cells.
    """

    path: Path
    content: Mapping[str, Any]
    missing: tuple[str, ...]
    looks: list[str]

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Reads a plan in the folder of its model. Raises UnusableFile."""
        check_types(content := read_json(path), PLAN)
        looks: list[str] = []
        if (before := path.with_name(_LOOKS)).exists():
            check_types(looks := read_json(before), LOOKS)
        missing = (name for name in content["cells"] if not (path.parents[1] / name).exists())
        return cls(path, content, tuple(missing), looks)

    def questions(self, file: ResultFile) -> int | None:
        """The planned number of questions of each task of a file; None if it is not in the plan."""
        folder = file.place.parent
        if not folder.is_relative_to(self.path.parents[1]):
            return None
        cell = self.content["cells"].get(folder.relative_to(self.path.parents[1]).as_posix())
        return cell and int(cell["questions"])

    def look(self, date: str) -> None:
        """Counts a report, if cells are missing."""
        if self.missing:
            self.looks.append(date)
            write_whole(self.path.with_name(_LOOKS), json.dumps(self.looks) + "\n")


@dataclass
class Model:
    """A checkpoint, with an adapter or without, and all of its answers.

    title: its name with its adapter, and what it differs in from another model of that name.
    weights, adapter_weights: digests of the files; None for a hub id without a digest.
    setting: its options that differ from the defaults, in words, beside those of conditions.
    prompts: the settings of the prompts' examples and wording.
    suite: version and hash of the few-shot suite.
    answers: condition -> task -> answers, for conditions that all tasks of the suite have, or tasks of `BESIDE`.
    analyses: name of an analysis -> its content.
    logits: what decided the model's logits in cells of sweeps, by which analyses are found.
    plan: the plan of the run; None without one.
    """

    name: str
    adapter: str
    weights: str | None
    adapter_weights: str | None
    setting: tuple[str, ...]
    prompts: Mapping[str, Any]
    suite: tuple[str, str | None]
    title: str = ""
    answers: dict[Condition, dict[str, Answers]] = field(default_factory=dict)
    analyses: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    files: list[ResultFile] = field(default_factory=list)
    logits: set[str] = field(default_factory=set)
    plan: Plan | None = None

    @property
    def has_masks(self) -> bool:
        """Whether it answers by filling masks; autoregressive models do not."""
        return any(one.masks != 0 for one in self.answers)

    @property
    def who(self) -> tuple[Any, ...]:
        """What the files of its answers share, whatever their tasks."""
        return self.name, self.adapter, self.weights, self.adapter_weights, self.setting

    def is_base_of(self, other: "Model") -> bool:
        """Whether `other` is this model with an adapter, asked in the same way."""
        own = (self.name, self.weights, self.setting, self.prompts, self.suite)
        return not self.adapter and own == (other.name, other.weights, other.setting, other.prompts, other.suite)


def read_models(folder: Path) -> tuple[list[Model], dict[str, str]]:
    """The models with answers to the suite under `folder`, and the files that are not used, each with its reason."""
    files, refused = read_folder(folder)
    plans: list[Plan] = []
    _each(folder, "plan.json", refused, lambda path: plans.append(Plan.read(path)))
    models: dict[tuple[Any, ...], Model] = {}
    beside: list[ResultFile] = []
    for file in files:
        suites = {name: result.suite for name, result in file.tasks.items() if result.suite}
        if cut := [result.name for result in file.tasks.values() if result.counts["truncated_prompts"]]:
            refused[file.path] = f"lost examples of prompts that do not fit into the model's context ({cut[0]})"
        elif suites:
            model = _model(models, file, file.tasks[next(iter(suites))])
            asked = {name: (_condition(file.tasks[name], task), task.task) for name, task in suites.items()}
            _add_answers(model, file, asked, plans, refused)
        else:
            beside.append(file)
    for file, group in product(beside, BESIDE):
        names = leaves(group, file.groups) if group in file.groups else [group] * (group in file.tasks)
        for model in models.values():
            if names and model.who == _who(file, file.tasks[names[0]]):
                asked = {name: (_condition_beside(group, file.tasks[name]), name) for name in names}
                _add_answers(model, file, asked, plans, refused)
    answered = [model for model in models.values() if _in_full(model)]
    _name(answered)
    _add_analyses(folder, answered, refused)
    return answered, refused


def _each(folder: Path, name: str, refused: dict[str, str], use: Callable[[Path], None]) -> None:
    """Calls `use` with every file of this name under a folder. Those that are not used are added to `refused`."""
    for path in sorted(folder.rglob(name)):
        place = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in Path(place).parts):
            continue  # not finished
        try:
            check_inside(path, folder)
            use(path)
        except UnusableFile as error:
            refused[printable(place)] = str(error)


def _add_answers(
    model: Model,
    file: ResultFile,
    asked: Mapping[str, tuple[Condition, str]],
    plans: Iterable[Plan],
    refused: dict[str, str],
) -> None:
    """Adds a file's answers to a model. `asked`: name of a task in the file -> its condition and its own name.

    Of two files, the one with more answers counts; with as many others, neither does.
    """
    if lacking := [name for name in asked if SUITE_METRIC not in file.tasks[name].metrics]:
        refused[file.path] = f"has no exact_match for {lacking[0]}"
        return
    model.files.append(file)
    if settings := _settings_of_cell(file.config):
        options = {name for one in file.tasks.values() for name in one.options}
        model.logits.add(_logits(file.model, settings, options | {"cache_audit"}))
    planned = [(plan, n) for plan in plans if (n := plan.questions(file))]
    model.plan = planned[0][0] if planned else model.plan
    for name, (condition, task) in asked.items():
        result = file.tasks[name]
        accuracy, n, letters = result.metrics[SUITE_METRIC], result.n_questions, result.first_token.get("letters") or ""
        if letters and (len(letters) != n or not math.isclose(letters.count("R") / n, accuracy, abs_tol=1e-6)):
            refused[file.path] = f"is used for accuracies alone, as first tokens of {name} are not its answers"
            letters = ""
        found = Answers(accuracy, n, letters)
        found = found.cut(planned[0][1]) if planned else found
        of_tasks = model.answers.setdefault(condition, {})
        before = of_tasks.get(task, found)
        of_tasks[task] = found if found.n > before.n else before
        if found.n == before.n and found != before:
            refused[file.path] = f"disagrees with another file on {name}; neither is used"
            of_tasks[task] = replace(before, disputed=True)


def _in_full(model: Model) -> bool:
    """Leaves the conditions that all tasks were asked under, without dispute. Returns whether there are any."""
    model.answers = {
        condition: dict(sorted(of_tasks.items()))
        for condition, of_tasks in model.answers.items()
        if (condition.asks in BESIDE or of_tasks.keys() == task_names())
        and not any(one.disputed for one in of_tasks.values())
    }
    return bool(model.answers)


def _name(models: Iterable[Model]) -> None:
    """Gives models their titles: name and adapter; and where several share these, the words in which they differ."""
    of_names: dict[str, list[Model]] = {}
    for model in models:
        of_names.setdefault(" + ".join(filter(None, (model.name, model.adapter))), []).append(model)
    for name, same in of_names.items():
        facts = [
            [
                *model.setting,
                *(f"{key}={value}" for key, value in model.prompts.items()),
                *(f"weights {digest[:7]}" for digest in (model.weights, model.adapter_weights) if digest),
                f"suite {model.suite[0]} ({(model.suite[1] or 'unknown')[:7]})",
            ]
            for model in same
        ]
        for model, own in zip(same, without_shared(facts), strict=True):
            model.title = f"{name} ({', '.join(own) or 'otherwise'})" if len(same) > 1 else name


def _who(file: ResultFile, result: TaskResult) -> tuple[Any, ...]:
    """Name, adapter, digests of both, and setting of the model that made a file."""
    record = file.mdlm or _settings_of_cell(file.config)
    setting = tuple(str(one) for one in deviations_of(file, result) if one.name not in _IN_CONDITION)
    return file.model, file.adapter or "", record.get("weights"), record.get("adapter_weights"), setting


def _model(models: dict[tuple[Any, ...], Model], file: ResultFile, result: TaskResult) -> Model:
    """The model of a file, which is added if it is new."""
    suite = file.mdlm.get("task_suite") or _settings_of_cell(file.config).get("task_suite") or {}
    prompts = {name: result.metadata.get(name, DEFAULT_SETTINGS[name]) for name in _OF_PROMPTS}
    name, adapter, weights, adapter_weights, setting = _who(file, result)
    new = Model(name, adapter, weights, adapter_weights, setting, prompts, (result.version, suite.get("sha256")))
    return models.setdefault((*new.who, *prompts.values(), new.suite), new)


def _condition(result: TaskResult, task: SuiteTask) -> Condition:
    given = {name: result.metadata.get(name, default) for name, default in DEFAULT_SETTINGS.items()}
    return replace(
        _decoded(result, masks_inside=int(not task.is_open_ended)),  # a fixed slot is a mask inside the text
        asks=task.asks,
        is_slot=task.is_slot,
        question=task.question or "",
        position=task.position,
        relevant=int(given["fewshot_relevant"]),
        distractors=int(given["fewshot_distractors"]),
        labels=str(given["fewshot_labels"]).lower(),
    )


def _condition_beside(group: str, result: TaskResult) -> Condition:
    return replace(_decoded(result), asks=group, relevant=result.shots, distractors=0)


def _decoded(result: TaskResult, masks_inside: int = 0) -> Condition:
    """A condition with a result's masks, fillers and steps."""
    options = result.options
    share, steps = options.get("mask_ratio"), options.get("steps", 1)
    asked = result.effective.get("asked_masks", (0, 0))[1] - masks_inside
    if not isinstance(steps, int):  # automatic, or unknown of a server
        steps = result.effective.get("steps", (1, 1))[1]
    return Condition(
        masks=asked if share is None else None,
        share=share,
        dots=options.get("n_fillers") or 0,
        steps=steps,
        order="" if steps == 1 else str(options.get("unmasking")),
    )


def _add_analyses(folder: Path, models: Collection[Model], refused: dict[str, str]) -> None:
    """Gives each finished analysis of a sweep to the models that it is of; of several, the one with the most rows."""

    def use(path: Path) -> None:
        task, of_row, values = _ANALYSED[path.stem]
        content = redacted(read_json(path))
        check_types(content, ANALYSIS)
        settings = _settings_of_cell(content.get("config") or {})
        if settings.get("task") != task or not _is_standard(settings.get("metadata") or {}):
            raise UnusableFile(f"was not made by a sweep of {task} with its standard examples")
        if not content["summary"] or not _is_whole(content["rows"], of_row, values):
            raise UnusableFile("lacks numbers of some questions or tasks")
        logits = _logits(str(content["settings"].get("pretrained")), settings)
        own = [model for model in models if logits in model.logits]
        if not own:
            raise UnusableFile("is of other weights, loading or prompts than the answers")
        for model in own:
            if len(model.analyses.get(path.stem, {}).get("rows", ())) < len(content["rows"]):
                model.analyses[path.stem] = content

    for name in _ANALYSED:
        _each(folder, f"{name}.json", refused, use)


def _is_whole(rows: Sequence[Mapping[str, Any]], of_row: Sequence[str], values: Sequence[str]) -> bool:
    """Whether all 16 tasks have the same rows, each once, with their values. Gradients have logarithms."""
    names = [(suite_task(row["task"]), *(row.get(name) for name in of_row)) for row in rows]
    tasks, *others = ({name[n] for name in names} for n in range(1 + len(of_row)))
    is_known = {task.task for task in tasks if task} == task_names() and not any(None in own for own in others)
    is_full = len({*names}) == len(rows) == math.prod(map(len, (tasks, *others)))
    return is_known and is_full and all(name in row and row.get("gradient") != 0 for row in rows for name in values)


def _settings_of_cell(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What decided the scores of a sweep's cell (`Claims.settings`); empty for other files."""
    return (config.get("mdlm_sweep") or {}).get("settings") or {}


def _logits(name: str, settings: Mapping[str, Any], options: Collection[str] = ()) -> str:
    """What decides a model's logits, of a cell's settings without `options`. A name identifies weights of a hub id."""
    arguments = settings.get("model_args") or {}
    metadata = settings.get("metadata") or {}
    decisive = {
        "weights": settings.get("weights") or name,
        "arguments": {key: value for key, value in arguments.items() if key not in options},
        **{key: settings.get(key) for key in _OF_LOGITS},
        **{key: metadata.get(key, DEFAULT_SETTINGS[key]) for key in _OF_PROMPTS},
    }
    return json.dumps(decisive, sort_keys=True)


def _is_standard(metadata: Mapping[str, Any]) -> bool:
    """Whether the numbers of examples and their labels are the suite's own."""
    others = {name: default for name, default in DEFAULT_SETTINGS.items() if name not in _OF_PROMPTS}
    return all(str(metadata.get(name, default)).lower() == str(default) for name, default in others.items())
