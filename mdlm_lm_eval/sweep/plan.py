"""Expands the grids of a sweep into cells, before anything is loaded."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path, PurePath
from typing import Any

from lm_eval._cli.utils import handle_cli_value_string

from mdlm_lm_eval.analyses import FILES
from mdlm_lm_eval.command_line import LM_EVAL_SEEDS, lm_eval_command
from mdlm_lm_eval.declared import aliases, declarations
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import (
    APPROXIMATE_CACHES,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    Option,
    OptionError,
    must_be,
    parse_whole,
    unknown_option,
)
from mdlm_lm_eval.resolve import loading_names
from mdlm_lm_eval.tasks.repeated.placement import check_place
from mdlm_lm_eval.tasks.settings import check_metadata

# Readers of lm-eval look for results_*.json. A cell has one result, so the name has no date.
RESULT_FILE = "results_cell.json"
_UNSAFE = re.compile(r"[^\w.,=+-]+")  # in the names of folders
_OF_TASKS = ("num_fewshot", "repeats", "query_position", "seed")
_OTHER_AXES = ("peft", "tasks", "metadata", "analysis", *_OF_TASKS)


def axes_of_options() -> dict[str, Option]:
    """Options that can be axes, by name, in the order of folders' names. The axis `seed` is lm_eval's `--seed`."""
    decoding = declarations(DecodingOptions)
    # Decoding options come first, and replace likelihood options of the same name.
    found = decoding | LikelihoodOptions.declared() | decoding
    found |= {name: ModelOptions.declared()[name] for name in ("cache_audit", "modeling")}
    del found["seed"]
    return found


@dataclass(frozen=True)
class Cell:
    """One run of `lm_eval`, or one analysis: a task or group under one setting of everything.

    model: the name of checkpoint and adapter in folders. arguments: those of `lm_eval --model_args`, including adapter
    and options. metadata: settings of the task, such as fewshot_distractors. None means that the argument is not given
    to `lm_eval`. analysis: the command of `mdlm-attribution` that runs instead, with its own defaults. recipes: those
    that the cell belongs to, if a recipe names others. limit: its questions per task. tokens: its size in a plan.
    """

    task: str
    model: str = "mdlm"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    num_fewshot: int | None = None
    repeats: int | None = None
    query_position: str | None = None
    seed: int | None = None
    analysis: str | None = None
    recipes: tuple[str, ...] = field(default=(), repr=False, compare=False)
    limit: float | None = None
    tokens: int | None = None

    @cached_property
    def name(self) -> str:
        """The cell's folder within the output folder: MODEL[+ADAPTER]/TASK,SETTINGS[,preset=PRESET].

        That of an analysis is MODEL[+ADAPTER]/analyses/ANALYSIS[,SETTINGS].
        """
        options = axes_of_options()
        settings = {name: value for name, value in self.arguments.items() if name in options} | dict(self.metadata)
        preset = str(self.arguments.get("preset") or "").replace("/", "__") or None
        more = {name: getattr(self, name) for name in _OF_TASKS} | {"preset": preset}
        settings |= {name: value for name, value in more.items() if value is not None}
        if settings.get("sampler") == "auto":
            settings["sampler"] = "built-in"
        words = [self.analysis or self.task, *(f"{name}={value}" for name, value in settings.items())]
        return f"{self.model}/{'analyses/' if self.analysis else ''}{_UNSAFE.sub('_', ','.join(words))}"

    @property
    def result_file(self) -> str:
        """The file in the cell's folder with its scores and settings."""
        return f"{FILES[self.analysis]}.json" if self.analysis else RESULT_FILE

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of Python, numpy, torch and the few-shot samples."""
        return LM_EVAL_SEEDS if self.seed is None else (self.seed,) * 4


@dataclass(frozen=True)
class Sweep:
    """The cells to run, the model to run them on, and lm-eval's settings that all cells share.

    model_args: without options and adapter, which belong to each cell. samples: numbers of the questions to ask, by
    task. use_cache: a folder with a request cache for each cell. apply_chat_template: "auto" if the tokenizer decides.
    study: of a recipe that names others. claims: claim -> words of its cells' names; most, share: words -> the most
    questions of a cell's tasks, and its largest share of the time.
    """

    cells: tuple[Cell, ...]
    model: str = "mdlm"
    model_args: Mapping[str, Any] = field(default_factory=dict)
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: float | None = None
    samples: Mapping[str, Any] | None = None
    use_cache: str | None = None
    batch_size: int | str = "8"
    device: str | None = None
    include_path: str | None = None
    log_samples: bool = False
    apply_chat_template: bool | str = False
    fewshot_as_multiturn: bool = True
    system_instruction: str | None = None
    confirm_run_unsafe_code: bool = False
    wandb_args: Mapping[str, Any] = field(default_factory=dict)
    trackio_args: Mapping[str, Any] = field(default_factory=dict)
    study: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def command(self, cell: Cell) -> str:
        """The `lm_eval` command of the same run, or that of ours which has all settings of the cell."""
        shared = {name: getattr(self, name) for name in ("batch_size", "device", "include_path", "system_instruction")}
        flags = {
            "model": self.model,
            "model_args": cell.arguments,
            "tasks": cell.task,
            "gen_kwargs": self.gen_kwargs,
            "metadata": [f"{name}={value}" for name, value in cell.metadata.items()],
            "num_fewshot": cell.num_fewshot,
            "repeats": cell.repeats,
            "query_position": cell.query_position,
            "limit": cell.limit,
            "samples": self.samples,
            "seed": cell.seed,
            **shared,
            "apply_chat_template": self.apply_chat_template,
            "fewshot_as_multiturn": None if self.fewshot_as_multiturn else "false",
            "confirm_run_unsafe_code": self.confirm_run_unsafe_code,
        }
        if cell.analysis:
            same = ("model", "model_args", "tasks", "metadata", "limit", "batch_size", "device", "apply_chat_template")
            return lm_eval_command({name: flags[name] for name in same}, f"mdlm-attribution {cell.analysis}")
        return lm_eval_command(flags, "mdlm-sweep" if cell.repeats or cell.query_position else "lm_eval")


# Settings that are the same in all cells.
COMMON_NAMES = frozenset(field.name for field in fields(Sweep)) - {"cells", "study"}


def plan(settings: Mapping[str, Any]) -> Sweep:
    """Returns a sweep with one cell for each combination of values, without repetitions.

    `grids` is a list of grids. Each has its own axes beside the common ones. Raises OptionError for unknown options,
    and for values that an option does not take.
    """
    common = {name: value for name, value in settings.items() if name != "grids"}
    grids: list[dict[str, Any]] = settings.get("grids") or [{}]
    options = axes_of_options().keys()
    _check_settings(common, grids, {*options, *_OTHER_AXES})
    model = str(common.get("model", "mdlm"))
    model_args = dict(common.get("model_args") or {})
    if model == "mdlm":
        model_args = {"pretrained": BUILT_IN, **loading_names(model_args)}
    # Options among the model arguments are axes of one value.
    axes = {name: [model_args.pop(name)] for name in model_args.keys() & {*options, "peft"}}
    found: list[Cell] = []
    for grid in grids:
        metadata = {**(common.get("metadata") or {}), **(grid.get("metadata") or {})}
        found += _cells({**axes, **common, **grid}, model=model, model_args=model_args, metadata=metadata)
    given = {name: common[name] for name in COMMON_NAMES if common.get(name) is not None}
    cells = distinct(found)
    if twice := [name for name, n in Counter(cell.name for cell in cells).items() if n > 1]:
        raise OptionError(f"two cells would share the folder {twice[0]}; give their adapters or values other names")
    return Sweep(cells, **(given | {"model_args": model_args}))


def _check_settings(common: Mapping[str, Any], grids: Sequence[Mapping[str, Any]], axis_names: set[str]) -> None:
    """Raises OptionError for unknown names, and names at places where they cannot be."""
    for name, value in [*common.items(), *(item for grid in grids for item in grid.items())]:
        if name not in axis_names | COMMON_NAMES:
            raise unknown_option("option", name, value, axis_names | COMMON_NAMES | {"grids", "preset"})
    named_in_grids = {name for grid in grids for name in grid}
    if misplaced := sorted(named_in_grids & COMMON_NAMES):
        raise OptionError(f"{misplaced[0]} is the same in all cells; name it above the grids")
    for place in ("model_args", "gen_kwargs"):
        if twice := sorted((common.get(place) or {}).keys() & (common.keys() | named_in_grids) & axis_names):
            raise OptionError(f"{twice[0]} is both in {place} and an axis; name it once")
    for typed in common.get("model_args") or ():
        axis = aliases().get(typed)
        if axis in (common.keys() | named_in_grids) and axis in axis_names:
            raise OptionError(f"{typed} in model_args and the axis {axis} are the same option; name it once")


def distinct(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells without repetitions. A cell that several recipes share belongs to all of them."""
    found: dict[str, Cell] = {}
    for cell in cells:
        first = found.get(repr(cell), cell)
        found[repr(cell)] = replace(first, recipes=tuple(dict.fromkeys((*first.recipes, *cell.recipes))))
    return tuple(found.values())


def _cells(
    settings: Mapping[str, Any], *, model: str, model_args: Mapping[str, Any], metadata: Mapping[str, Any]
) -> list[Cell]:
    """All combinations of values. Cells with the same adapter, and within these the same task, follow one another."""
    if not settings.get("tasks"):
        raise OptionError("tasks is not set; name at least one, such as mdlm_context")
    analysis = settings.get("analysis")
    if analysis is not None and analysis not in FILES:
        raise must_be("analysis", f"one of {', '.join(FILES)}", analysis)
    groups = _axes(settings, model, analysis, metadata)
    has_caches = any(value in APPROXIMATE_CACHES for value in groups[-1].get("cache", ()))
    combined = [[dict(zip(axes, values, strict=True)) for values in product(*axes.values())] for axes in groups]
    cells = []
    for place, of_examples, of_task, chosen in product(*combined):
        arguments = {**model_args, **chosen}
        if has_caches and chosen["cache"] not in APPROXIMATE_CACHES:
            arguments.pop("cache_audit", None)  # an exact cell has nothing to audit
        name, peft = _checkpoint_name(str(model_args.get("pretrained", model))), str(place["peft"])
        if peft.lower() != "none":
            arguments["peft"], name = peft, f"{name}+{_checkpoint_name(peft)}"
        task = str(place["tasks"])
        check_metadata([task], of_examples)
        cells.append(
            Cell(
                task,
                name,
                arguments,
                of_examples,
                num_fewshot=of_task["num_fewshot"],
                repeats=of_task["repeats"],
                query_position=of_task["query_position"],
                seed=of_task["seed"],
                analysis=analysis,
                limit=settings.get("limit"),
            )
        )
    return cells


def _axes(
    settings: Mapping[str, Any], model: str, analysis: str | None, metadata: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], ...]:
    """The values of all axes by name: of adapters and tasks, of examples, of how tasks are asked, and of options."""
    # Autoregressive models have no such options. Analyses set the masks themselves, and do not decode.
    declared = axes_of_options()
    used = () if model != "mdlm" else ("modeling",) if analysis else declared
    options = {name: _values(name, settings[name]) for name in used if name in settings}
    for name in options.keys() - ModelOptions.declared().keys():  # parsed, so that 1 and 1.0 are one cell
        options[name] = [declared[name].parse(value) for value in options[name]]
    return (
        {name: _values(name, settings.get(name)) for name in ("peft", "tasks")},
        {name: _values(name, value) for name, value in metadata.items()},
        {name: [_of_task(name, value) for value in _values(name, settings.get(name))] for name in _OF_TASKS},
        options,
    )


def _of_task(name: str, value: Any) -> Any:
    """A parsed value of how tasks are asked. Raises OptionError for a wrong one."""
    if value is None:
        return None
    if name == "query_position":
        check_place(value)
        return value
    return parse_whole(name, value, least=int(name == "repeats"))


def _values(name: str, value: Any) -> list[Any]:
    """The values of an axis, given as a list, a text with commas, or one value. Raises OptionError if there is none."""
    if isinstance(value, str):
        value = [handle_cli_value_string(part.strip()) for part in value.split(",") if part.strip()]
    if value == []:
        raise OptionError(f"{name} has no value")
    return value if isinstance(value, list) else [value]


def _checkpoint_name(name: str) -> str:
    """The name of a checkpoint in folders: a hub id or relative path as a whole, or the last part of another path."""
    path = Path(name)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    name = path.name if path.is_absolute() else PurePath(path).as_posix()
    return _UNSAFE.sub("_", name.strip("./").replace("/", "__"))  # as lm-eval names folders
