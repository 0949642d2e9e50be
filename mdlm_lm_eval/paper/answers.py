"""Reads the answers of the few-shot suite from result files: for each model, condition and task, a sign a question."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdlm_lm_eval.results.decomposition import SHARES
from mdlm_lm_eval.results.files import UnusableFile, read_json, write_whole
from mdlm_lm_eval.results.frame import MASKS, read_folder, setting_of
from mdlm_lm_eval.results.result_file import ANALYSES, ResultFile, TaskResult
from mdlm_lm_eval.results.suite import SUITE_METRIC, SuiteTask, suite_task, task_names
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

_IN_CONDITION = MASKS | {"steps", "steps_per_block", "unmasking", "n_fillers", "filler"}
_TRUE_LABELS = "true"


@dataclass(frozen=True)
class Condition:
    """The variables of the paper's experiments. Two answers to a question under equal conditions are the same.

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

    letters: a sign for each question's first token (`LabelTokens.letter`); "" for a model that records none.
    accuracy: share of right answers, of lm-eval.
    """

    accuracy: float
    n: int
    letters: str = ""

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
    """What a run of `mdlm-sweep --config paper` is going to ask (`plan.json`), and which cells have no result yet."""

    path: Path
    content: Mapping[str, Any]
    missing: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Reads a plan in the folder of its model. Raises UnusableFile."""
        content = read_json(path)
        cells = content["cells"] if isinstance(content, dict) and "cells" in content else {}
        return cls(path, content, tuple(name for name in cells if not _is_done(path.parents[1] / name)))

    def questions(self, file: ResultFile) -> int | None:
        """The planned number of questions of each task of a file; None if it is not in the plan."""
        folder = file.place.parent
        if not folder.is_relative_to(self.path.parents[1]):
            return None
        cell = self.content["cells"].get(folder.relative_to(self.path.parents[1]).as_posix())
        return cell and int(cell["questions"])

    @property
    def looks(self) -> list[str]:
        """The dates of reports that were made before all cells had a result."""
        path = self.path.with_name("looks.json")
        return list(read_json(path)) if path.exists() else []

    def look(self, date: str) -> None:
        """Counts a report, if cells are missing."""
        if self.missing:
            write_whole(self.path.with_name("looks.json"), json.dumps([*self.looks, date]) + "\n")


@dataclass
class Model:
    """A checkpoint, with an adapter or without, and all of its answers.

    setting: its options that differ from the defaults, in words, beside those of conditions.
    answers: condition -> task -> answers, for conditions that all tasks have.
    analyses: name of an analysis -> its content.
    plan: the plan of the run; None without one.
    """

    name: str
    adapter: str
    setting: tuple[str, ...]
    answers: dict[Condition, dict[str, Answers]] = field(default_factory=dict)
    analyses: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    files: list[ResultFile] = field(default_factory=list)
    plan: Plan | None = None

    @property
    def title(self) -> str:
        """The name with its adapter."""
        return f"{self.name} + {self.adapter}" if self.adapter else self.name


def read_models(folder: Path) -> tuple[list[Model], dict[str, str]]:
    """The models with answers to the suite under `folder`, and the files that are not used, each with its reason."""
    files, refused = read_folder(folder)
    plans = [Plan.read(path) for path in sorted(folder.rglob("plan.json"))]
    models: dict[tuple[Any, ...], Model] = {}
    for file in files:
        suites = {name: task for name in file.tasks if (task := suite_task(name))}
        if not suites:
            continue
        if cut := [name for name in suites if file.tasks[name].truncated_prompts]:
            refused[file.path] = f"lost examples of prompts that do not fit into the model's context ({cut[0]})"
            continue
        model = _model(models, file, file.tasks[next(iter(suites))])
        model.files.append(file)
        planned = [(plan, n) for plan in plans if (n := plan.questions(file))]
        model.plan = planned[0][0] if planned else model.plan
        for name, task in suites.items():
            result = file.tasks[name]
            found = Answers(result.metrics[SUITE_METRIC], result.n_questions, result.first_token.get("letters") or "")
            of_tasks = model.answers.setdefault(_condition(task, result), {})
            found = found.cut(planned[0][1]) if planned else found
            if task.task not in of_tasks or of_tasks[task.task].n < found.n:
                of_tasks[task.task] = found
    for model in models.values():
        model.answers = {
            condition: dict(sorted(of_tasks.items()))
            for condition, of_tasks in model.answers.items()
            if of_tasks.keys() == task_names()
        }
    _add_analyses(folder, models.values(), refused)
    return [model for model in models.values() if model.answers], refused


def _is_done(folder: Path) -> bool:
    """Whether a cell's folder holds a result, or an analysis with its summary."""
    if (folder / "results_cell.json").exists():
        return True
    return any(read_json(path).get("summary") for path in folder.glob("*.json"))


def _model(models: dict[tuple[Any, ...], Model], file: ResultFile, result: TaskResult) -> Model:
    """The model of a file, which is added if it is new."""
    adapter = file.adapter or ""
    words = tuple(setting_of(file, result, without=_IN_CONDITION))
    weights = (file.mdlm.get("weights"), file.mdlm.get("adapter_weights"), file.suite_hash)
    metadata = tuple(result.metadata.get(name) for name in ("fewshot_seed", "fewshot_template"))
    key = (file.model, adapter, weights, words, metadata)
    return models.setdefault(key, Model(file.model, adapter, words))


def _condition(task: SuiteTask, result: TaskResult) -> Condition:
    options = result.options
    share = options.get("mask_ratio")
    # A fixed slot is a mask inside the text.
    asked = result.effective.get("asked_masks", (0, 0))[1] - (not task.is_open_ended)
    steps = options.get("steps", 1)
    taken = result.effective.get("steps", (1, 1))[1]
    steps = int(taken if steps in (None, "auto") else steps)
    given = {name: result.metadata.get(name, default) for name, default in DEFAULT_SETTINGS.items()}
    return Condition(
        asks=task.asks,
        is_slot=task.is_slot,
        question=task.question or "",
        position=task.position,
        masks=asked if share is None else None,
        share=share,
        dots=options.get("n_fillers") or 0,
        steps=steps,
        order="" if steps == 1 else str(options.get("unmasking")),
        relevant=int(given["fewshot_relevant"]),
        distractors=int(given["fewshot_distractors"]),
        labels=str(given["fewshot_labels"]).lower(),
    )


def _add_analyses(folder: Path, models: Iterable[Model], refused: dict[str, str]) -> None:
    """Gives each analysis below `folder` to the model with its name and adapter."""
    for name in ANALYSES:
        for path in sorted(folder.rglob(f"{name}.json")):
            try:
                content = read_json(path)
            except UnusableFile as error:
                refused[str(path.relative_to(folder))] = str(error)
                continue
            settings = content["settings"]
            for model in models:
                if (model.name, model.adapter or None) == (settings["pretrained"], settings["adapter"]):
                    model.analyses[name] = content
