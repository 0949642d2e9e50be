"""What a sweep runs: a grid of settings, spelled out into cells before anything is loaded."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from mdlm_lm_eval.model_arguments import (
    DECODING_NAMES,
    LIKELIHOOD_NAMES,
    ModelArguments,
    split_model_arguments,
    unknown_name,
)
from mdlm_lm_eval.options import OptionError

OPTION_NAMES = DECODING_NAMES | LIKELIHOOD_NAMES
# What a sweep file may hold beside the axes.
SETTING_NAMES = frozenset(
    {"model", "model_args", "peft", "tasks", "metadata", "grids", "limit", "batch_size", "device", "seed"}
)
AUTOREGRESSIVE = "hf"
MODELS = ("mdlm", AUTOREGRESSIVE)


@dataclass(frozen=True)
class Cell:
    """One run of lm-eval: some tasks under one setting of everything."""

    peft: str | None
    tasks: tuple[str, ...]
    options: Mapping[str, Any]  # decoding and likelihood options on top of the model arguments
    metadata: Mapping[str, Any]  # of the tasks, such as fewshot_distractors

    @property
    def name(self) -> str:
        """Of its folder: tasks and settings."""
        settings = [f"{name}={value}" for name, value in {**self.options, **self.metadata}.items()]
        tasks = self.tasks[0] if len(self.tasks) == 1 else f"{self.tasks[0]}-and-{len(self.tasks) - 1}-more"
        return _file_name(",".join([tasks, *settings]))


@dataclass(frozen=True)
class Sweep:
    """A validated sweep: what to load, and the cells to run on it."""

    model: str
    model_args: Mapping[str, Any]
    cells: tuple[Cell, ...]
    limit: float | None = None
    batch_size: str = "auto"
    device: str | None = None
    seed: int = 1234

    def model_folder(self, peft: str | None) -> str:
        """Name of the folder of a model's results: its checkpoint's and its adapter's names."""
        pretrained = self.model_args.get("pretrained")
        name = "built-in" if pretrained is None else str(pretrained).rstrip("/")
        adapter = peft or self.model_args.get("peft")
        if PurePath(name).is_absolute():
            name = PurePath(name).name
        return _file_name(name if adapter is None else f"{name}+{PurePath(adapter).name}")

    def arguments(self, cell: Cell) -> ModelArguments:
        """The model arguments of one cell, as `lm_eval --model mdlm` would take them."""
        adapter = {} if cell.peft is None else {"peft": cell.peft}
        return split_model_arguments({**self.model_args, **adapter, **cell.options}, default_seed=self.seed)


def plan(settings: Mapping[str, Any]) -> Sweep:
    """The cells of a sweep file's settings, every value of an axis with every other, without repetitions.

    `grids`, a list, holds further settings; each is a grid of its own on top of the common ones. Raises OptionError for
    a name that is no option and for any value of any cell that is not allowed.
    """
    common = {name: value for name, value in settings.items() if name != "grids"}
    grids = settings.get("grids") or [{}]
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise OptionError(f"grids={grids!r} is not allowed; allowed is a list of settings")
    model = str(common.get("model", "mdlm"))
    if model not in MODELS:
        raise OptionError(f"model={model} is not allowed in a sweep; allowed are {' and '.join(MODELS)}")
    cells: dict[str, Cell] = {}
    for grid in grids:
        merged = {**common, **grid, "metadata": {**(common.get("metadata") or {}), **(grid.get("metadata") or {})}}
        for cell in _cells(merged, model):
            cells.setdefault(f"{cell.peft} {cell.name}", cell)
    limit = common.get("limit")
    sweep = Sweep(
        model=model,
        model_args=dict(common.get("model_args") or {}),
        cells=tuple(cells.values()),
        limit=None if limit is None else _number("limit", limit),
        batch_size=str(common.get("batch_size", "auto")),
        device=common.get("device"),
        seed=int(_number("seed", common.get("seed", 1234))),
    )
    if model == "mdlm":
        for cell in sweep.cells:
            sweep.arguments(cell)
    return sweep


def _cells(settings: Mapping[str, Any], model: str) -> list[Cell]:
    tasks = tuple(_values(settings.get("tasks")))
    if not tasks:
        raise OptionError("tasks is not set; name at least one, such as mdlm_context")
    axes: dict[str, list[Any]] = {}
    for name, value in settings.items():
        if name in SETTING_NAMES:
            continue
        if name not in OPTION_NAMES:
            raise OptionError(unknown_name("option", name, value, OPTION_NAMES | SETTING_NAMES))
        # Autoregressive models decode in one way only, so that these axes collapse.
        if model != AUTOREGRESSIVE:
            axes[name] = _parsed(value)
    metadata = {name: _parsed(value) for name, value in settings["metadata"].items()}
    adapters = [None if str(peft).lower() == "none" else str(peft) for peft in _values(settings.get("peft", "none"))]
    cells = []
    for peft in adapters:
        for chosen in itertools.product(*axes.values(), *metadata.values()):
            options = dict(zip(axes, chosen, strict=False))
            of_tasks = dict(zip(metadata, chosen[len(axes) :], strict=True))
            cells.append(Cell(peft, tasks, options, of_tasks))
    return cells


def _values(value: Any) -> list[Any]:
    """An axis: a list, or a text of values with commas between them, or one value."""
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [] if value is None else [value]


def _parsed(value: Any) -> list[Any]:
    """An axis whose texts are numbers and words of YAML, so that a file and a command line mean the same."""
    return [yaml.safe_load(part) if isinstance(part, str) else part for part in _values(value)]


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name}={value!r} is not allowed; allowed is a number") from error
    if number < 0:
        raise OptionError(f"{name}={value!r} is not allowed; allowed are numbers from 0")
    return int(number) if number.is_integer() else number


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=+-]+", "_", text)
