"""One finished cell on disk: an ordinary lm-eval result file in a folder that appears whole."""

import json
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from lm_eval.loggers import EvaluationTracker

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.plan import Cell, Sweep

# lm-eval's readers look for results_*.json; a cell has one result, so no date in the name.
RESULT_FILE = "results_cell.json"


def cell_folder(sweep: Sweep, cell: Cell, output: Path) -> Path:
    """Where a cell's files lie."""
    return output / sweep.model_folder(cell.peft) / cell.name


def cell_settings(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    """Everything that decides a cell's scores, except the code's own version."""
    return {
        "model": sweep.model,
        "model_args": dict(sweep.model_args),
        "peft": cell.peft,
        "tasks": list(cell.tasks),
        "options": dict(cell.options),
        "metadata": dict(cell.metadata),
        "limit": sweep.limit,
        "seed": sweep.seed,
    }


def is_finished(sweep: Sweep, cell: Cell, output: Path) -> bool:
    """Whether the cell's result lies there. Raises OptionError where another cell's lies in its place."""
    path = cell_folder(sweep, cell, output) / RESULT_FILE
    if not path.exists():
        return False
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))["config"]["mdlm_sweep"]["settings"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise OptionError(
            f"{path} is in the way: it is no result of a sweep; move it, or name another folder"
        ) from error
    for name, value in cell_settings(sweep, cell).items():
        if stored.get(name) != value:
            raise OptionError(
                f"{path} is in the way: it was made with {name}={stored.get(name)}, this sweep has {name}={value}; "
                "name another --output_path"
            )
    return True


def write_cell(sweep: Sweep, cell: Cell, output: Path, results: dict[str, Any], tracker: EvaluationTracker) -> Path:
    """Writes a cell's result and, where there are any, its samples, through lm-eval's own tracker."""
    samples = results.pop("samples", None)
    folder = cell_folder(sweep, cell, output)
    folder.parent.mkdir(parents=True, exist_ok=True)
    results["config"]["model"] = sweep.model
    results["config"]["model_args"] = _model_arguments(sweep, cell)
    results["config"]["mdlm_sweep"] = {"settings": cell_settings(sweep, cell), "command": command(sweep, cell)}
    for config in results["configs"].values():
        source = config.get("metadata", {}).get("config_source")
        if source is not None:
            config["metadata"]["config_source"] = _without_machine(source)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        tracker.output_path = scratch
        tracker.save_results_aggregated(results=results, samples=samples)
        for task, of_task in (samples or {}).items():
            tracker.save_results_samples(task_name=task, samples=of_task)
        (written,) = Path(scratch).rglob("results_*.json")
        written.rename(written.with_name(RESULT_FILE))
        os.replace(written.parent, folder)
    return folder / RESULT_FILE


def command(sweep: Sweep, cell: Cell) -> str:
    """The `lm_eval` command of the very same run."""
    model_args = _model_arguments(sweep, cell)
    words = ["lm_eval", "--model", sweep.model]
    if model_args:
        words += ["--model_args", ",".join(f"{name}={value}" for name, value in model_args.items())]
    words += ["--tasks", ",".join(cell.tasks)]
    if cell.metadata:
        words += ["--metadata", *(f"{name}={value}" for name, value in cell.metadata.items())]
    for name in ("limit", "batch_size", "device", "seed"):
        value = vars(sweep)[name]
        if value is not None and (name, value) != ("seed", 1234):
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _model_arguments(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    adapter: Mapping[str, Any] = {} if cell.peft is None else {"peft": cell.peft}
    return {**sweep.model_args, **adapter, **cell.options}


def _without_machine(source: str) -> str:
    """A task's YAML within the suite's folder, where it lies there, else its bare name."""
    path = PurePath(source)
    return path.relative_to(tasks_path()).as_posix() if path.is_relative_to(tasks_path()) else path.name
