"""What a sweep runs: grids of settings, spelled out into cells before anything is loaded."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any

from mdlm_lm_eval.model_arguments import ModelArguments, check_loading, split_model_arguments
from mdlm_lm_eval.options import (
    DECODING_NAMES,
    LARGEST_NUMPY_SEED,
    LIKELIHOOD_NAMES,
    LM_EVAL_SEEDS,
    OPTION_KINDS,
    OptionError,
    options_of,
    unknown_option,
)
from mdlm_lm_eval.results.files import check_include_path
from mdlm_lm_eval.values import check_batch_size, must_be, number_of, parse_flag, parse_limit, parse_whole

AUTOREGRESSIVE = "hf"
MODELS = ("mdlm", AUTOREGRESSIVE)
_MOST_CELLS = 100_000
# Bytes that a disk takes, less the most that is put around a name, by `whole_folder`. Scratch files have names of their
# own, and `Claim` takes over itself where filelock cannot, which puts more than 50 bytes around a name.
_LONGEST_NAME = 255 - len("..old.unfinished")
# `seed` is lm-eval's own, which the options' default to.
OPTION_NAMES = (DECODING_NAMES | LIKELIHOOD_NAMES | {"cache_audit"}) - {"seed"}
# In the order in which folders name them.
_OPTIONS = dict.fromkeys(each.name for kind in OPTION_KINDS for each in options_of(kind))
AXIS_NAMES = OPTION_NAMES | {"peft", "tasks", "metadata", "num_fewshot", "seed"}


@dataclass(frozen=True)
class Cell:
    """One run of lm-eval: a task or group under one setting of everything.

    `options` are decoding and likelihood options, `metadata` is the task's own, such as fewshot_distractors. None means
    what `lm_eval` does without the argument.
    """

    peft: str | None
    task: str
    options: Mapping[str, Any]
    metadata: Mapping[str, Any]
    num_fewshot: int | None = None
    seed: int | None = None

    @property
    def name(self) -> str:
        """Of its folder: task and settings."""
        shots = {} if self.num_fewshot is None else {"num_fewshot": self.num_fewshot}
        seed = {} if self.seed is None else {"seed": self.seed}
        settings = [f"{name}={value}" for name, value in {**self.options, **self.metadata, **shots, **seed}.items()]
        return _file_name(",".join([self.task, *settings]))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of Python, numpy, torch and few-shot samples."""
        return LM_EVAL_SEEDS if self.seed is None else (self.seed,) * 4


@dataclass(frozen=True)
class Sweep:
    """A validated sweep: what to load, the cells to run on it, and lm-eval's settings that all cells share."""

    model: str
    model_args: Mapping[str, Any]  # without options and adapter, which are each cell's own
    cells: tuple[Cell, ...]
    limit: float | None = None
    batch_size: str = "8"
    device: str | None = None
    include_path: str | None = None
    log_samples: bool = False
    apply_chat_template: bool | str = False
    system_instruction: str | None = None
    confirm_run_unsafe_code: bool = False

    def model_folder(self, peft: str | None) -> str:
        """Name of the folder of a model's results: its checkpoint's and its adapter's names."""
        name = _checkpoint_name(str(self.model_args.get("pretrained", "built-in")))
        return name if peft is None else f"{name}+{_checkpoint_name(peft)}"

    def model_arguments(self, cell: Cell) -> dict[str, Any]:
        """As `lm_eval --model_args` takes them."""
        adapter: Mapping[str, Any] = {} if cell.peft is None else {"peft": cell.peft}
        return {**self.model_args, **adapter, **cell.options}

    def parsed_arguments(self, cell: Cell) -> ModelArguments:
        """The same, validated. Raises OptionError."""
        return split_model_arguments(self.model_arguments(cell), default_seed=cell.seeds[2])


# The others are the same in all cells.
COMMON_NAMES = frozenset(field.name for field in fields(Sweep)) - {"cells"}


def plan(settings: Mapping[str, Any]) -> Sweep:
    """The cells of a sweep file's settings, every value of an axis with every other, without repetitions.

    `grids`, a list, holds further axes; each is a grid of its own on top of the common ones. Raises OptionError for a
    name that is no option and for any value of any cell that cannot be used.
    """
    common = {name: value for name, value in settings.items() if name != "grids"}
    grids = settings.get("grids", [{}])
    if not isinstance(grids, list) or not grids or not all(isinstance(grid, dict) for grid in grids):
        raise must_be("grids", "a list of settings", grids)
    for name, value in [*common.items(), *(item for grid in grids for item in grid.items())]:
        if name not in AXIS_NAMES | COMMON_NAMES:
            raise unknown_option("option", name, value, AXIS_NAMES | COMMON_NAMES)
    if misplaced := sorted({name for grid in grids for name in grid} & COMMON_NAMES):
        raise OptionError(f"{misplaced[0]} stands in grids and is the same in all cells; name it above them")
    model = str(common.get("model", "mdlm"))
    if model not in MODELS:
        raise must_be("model", f"one of {', '.join(MODELS)} in a sweep", model)
    model_args, fixed_axes = _model_arguments(settings)
    cells: dict[str, Cell] = {}
    for grid in grids:
        axes = {**fixed_axes, **common, **grid}
        axes["metadata"] = {**_mapping("metadata", common), **_mapping("metadata", grid)}
        cells |= {repr(cell): cell for cell in _cells(axes, model)}
    given: dict[str, Any] = {name: common[name] for name in COMMON_NAMES if common.get(name) is not None}
    if "limit" in given:
        given["limit"] = parse_limit("limit", given["limit"])
    for name in ("log_samples", "confirm_run_unsafe_code"):
        given[name] = parse_flag(name, given.get(name, False))
    for name in ("device", "include_path", "system_instruction"):
        if not isinstance(given.get(name, ""), str):
            raise must_be(name, "a text", given[name])
    if not isinstance(given.get("apply_chat_template", False), (bool, str)):
        raise must_be("apply_chat_template", "true, false or a template's name", given["apply_chat_template"])
    if given.get("device") == "":
        raise OptionError("device is not set; name one, such as cuda:0")
    if "include_path" in given:
        check_include_path(given["include_path"])
    check_batch_size(given.get("batch_size"))
    given["batch_size"] = str(given.get("batch_size", Sweep.batch_size))
    sweep = Sweep(**(given | {"model": model, "model_args": model_args, "cells": tuple(cells.values())}))
    for cell in sweep.cells if model != AUTOREGRESSIVE else ():
        sweep.parsed_arguments(cell)
    _check_folders(sweep)
    return sweep


def _model_arguments(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model arguments for loading, and those that are axes of one value."""
    given = {name: _typed(value) for name, value in _mapping("model_args", settings).items()}
    grids: list[Mapping[str, Any]] = settings.get("grids") or []
    for name, value in given.items():
        if name in AXIS_NAMES and (name in settings or any(name in grid for grid in grids)):
            raise OptionError(f"{name} is both in model_args ({value}) and an axis; name it once")
    axes = {name: given.pop(name) for name in list(given) if name in OPTION_NAMES | {"peft"}}
    given = check_loading(given)
    if "pretrained" in given:
        given["pretrained"] = str(given["pretrained"])
    return given, {name: [value] for name, value in axes.items()}


def _cells(settings: Mapping[str, Any], model: str) -> list[Cell]:
    """All combinations; those that share a model, then those that share its tasks, one after the other."""
    tasks = _values("tasks", settings)
    for task in tasks:
        if not isinstance(task, str):
            raise must_be("tasks", "names of tasks", task)
    if not tasks:
        raise OptionError("tasks is not set; name at least one, such as mdlm_context")
    axes = {name: settings[name] for name in AXIS_NAMES - {"tasks", "metadata"} & settings.keys()}
    of_tasks = _mapping("metadata", settings)
    for name in [*axes, *of_tasks]:
        if not _values(name, {**axes, **of_tasks}):
            raise OptionError(f"{name} has no value; give at least one")
    # Autoregressive models decode in one way only, so that these axes collapse.
    names = [name for name in _OPTIONS if name in settings and name in OPTION_NAMES and model != AUTOREGRESSIVE]
    options = {name: [_option(name, value) for value in _values(name, settings)] for name in names}
    metadata = {str(name): [_typed(value) for value in _values(name, of_tasks)] for name in of_tasks}
    adapters = [None if str(peft).lower() == "none" else str(peft) for peft in _values("peft", settings)]
    shots: list[int | None] = [parse_whole("num_fewshot", value) for value in _values("num_fewshot", settings)]
    seeds: list[int | None] = [
        parse_whole("seed", value, most=LARGEST_NUMPY_SEED) for value in _values("seed", settings)
    ]
    n_cells = math.prod(
        max(len(values), 1) for values in (adapters, tasks, shots, seeds, *metadata.values(), *options.values())
    )
    if n_cells > _MOST_CELLS:
        raise OptionError(f"the grid has {n_cells} cells; at most {_MOST_CELLS} are possible")
    return [
        Cell(
            peft=peft,
            task=task,
            options=dict(zip(options, chosen, strict=False)),
            metadata=dict(zip(metadata, of_task, strict=True)),
            num_fewshot=n,
            seed=seed,
        )
        for peft in adapters or [None]
        for task in tasks
        for of_task in itertools.product(*metadata.values())
        for n in shots or [None]
        for seed in seeds or [None]
        for chosen in itertools.product(*options.values())
    ]


def _check_folders(sweep: Sweep) -> None:
    folders = Counter(f"{sweep.model_folder(cell.peft)}/{cell.name}" for cell in sweep.cells)
    if repeated := [name for name, count in folders.items() if count > 1]:
        raise OptionError(f"two cells would lie in the folder {repeated[0]}; give their adapters or values other names")
    longest = max((part for name in folders for part in name.split("/")), key=lambda part: len(part.encode()))
    if len(longest.encode()) > _LONGEST_NAME:
        raise OptionError(
            f"the settings make a folder name of {len(longest.encode())} bytes, {longest[:60]}...; at most "
            f"{_LONGEST_NAME} are possible: shorten values such as filler"
        )


def _option(name: str, value: object) -> Any:
    kind = next(kind for kind in OPTION_KINDS if name in {each.name for each in options_of(kind)})
    return vars(kind().override({name: value}))[name]


def _typed(value: Any) -> Any:
    """A text as what it spells; a file has types of its own."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    number = number_of(value)
    return value if number is None else number


def _values(name: str, settings: Mapping[str, Any]) -> list[Any]:
    """An axis: a list, or a text of values with commas between them, or one value."""
    value = settings.get(name)
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(each, (list, dict)) for each in values):
        raise must_be(name, "a value or a list of values", value)
    return values


def _mapping(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    value = settings.get(name) or {}
    if not isinstance(value, dict):
        raise must_be(name, "names with a value each", value)
    return dict(value)


def _checkpoint_name(name: str) -> str:
    """A hub name or a relative path whole, of any other path the last part: the rest names folders of one machine."""
    path = Path(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return _file_name((path.name if path.is_absolute() else PurePath(path).as_posix()).strip("./"))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=+-]+", "_", text)
