"""One cell on disk: an ordinary lm-eval result file in a folder that appears whole, or not at all."""

import json
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import lm_eval
from lm_eval.loggers import EvaluationTracker

from mdlm_lm_eval import families, tasks_path
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.run_info import suite_info
from mdlm_lm_eval.sweep.plan import Cell, Sweep

# lm-eval's readers look for results_*.json; a cell has one result, so no date in the name.
RESULT_FILE = "results_cell.json"


def cell_folder(sweep: Sweep, cell: Cell, output: Path) -> Path:
    """Where a cell's files lie."""
    return output / sweep.model_folder(cell.peft) / cell.name


def cell_settings(sweep: Sweep, cell: Cell, task_names: Iterable[str]) -> dict[str, Any]:
    """Everything that decides a cell's scores, except the versions of code, which lm-eval records itself."""
    settings = {
        "model": sweep.model,
        "model_args": sweep.model_arguments(cell),
        "task": cell.task,
        "metadata": cell.metadata,
        "num_fewshot": cell.num_fewshot,
        "seeds": cell.seeds,
        "limit": sweep.limit,
        "apply_chat_template": sweep.apply_chat_template,
        "system_instruction": sweep.system_instruction,
        "log_samples": sweep.log_samples,
        "task_suite": suite_info(task_names),
        "weights": families.files_digest(str(sweep.model_args.get("pretrained", default_model_path()))),
        "adapter_weights": None if cell.peft is None else families.files_digest(cell.peft),
    }
    return json.loads(json.dumps(settings, default=str))  # as the file will have it


def is_finished(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether a cell's result lies there. Raises OptionError where something else lies in its place."""
    if not folder.exists():
        return False
    path = folder / RESULT_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))["config"]["mdlm_sweep"]["settings"]
        differences = [
            f"{name} was {stored.get(name)} and is {settings.get(name)}"
            for name in settings | stored
            if stored.get(name) != settings.get(name)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{folder} is in the way and holds no result of a sweep; move it, or name another --output_path"
        ) from error
    if differences:
        raise OptionError(
            f"{path} is in the way, a result of other settings ({'; '.join(differences)}); move it, or name another "
            "--output_path"
        )
    return True


def check_output(output: Path) -> None:
    """Raises OptionError where no result can be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output):
            pass
    except OSError as error:
        raise OptionError(f"--output_path {output} cannot be written: {error}") from error


def clear_unfinished(folder: Path) -> None:
    """Removes what a killed sweep left of a cell."""
    shutil.rmtree(_unfinished(folder), ignore_errors=True)


def write_cell(folder: Path, results: dict[str, Any], tracker: EvaluationTracker) -> None:
    """Writes a cell's result and, where there are any, its samples, through lm-eval's own tracker.

    Raises OSError where they cannot be written.
    """
    samples = results.pop("samples", None)
    unfinished = _unfinished(folder)
    clear_unfinished(folder)
    unfinished.mkdir(parents=True)
    tracker.output_path = str(unfinished / "results.json")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, of_task in (samples or {}).items():
        tracker.save_results_samples(task_name=task, samples=of_task)
    for path in list(unfinished.iterdir()):
        path.rename(path.with_name(path.name.replace(tracker.date_id, "cell")))
    try:
        # The tracker only logs what went wrong.
        json.loads((unfinished / RESULT_FILE).read_text(encoding="utf-8"))
        n_samples = len(list(unfinished.glob("samples_*.jsonl")))
    except (OSError, ValueError) as error:
        raise OSError(f"{folder} cannot be written: {error}") from error
    if n_samples != len(samples or {}):
        raise OSError(f"{folder} cannot be written: {len(samples or {}) - n_samples} files of samples are missing")
    unfinished.rename(folder)


def record_cell(sweep: Sweep, cell: Cell, settings: dict[str, Any], results: dict[str, Any]) -> None:
    """Puts into a result what lm-eval cannot know of a model that was loaded before, and how to get it again."""
    results["config"]["model"] = sweep.model
    results["config"]["mdlm_sweep"] = {"settings": settings, "command": command(sweep, cell)}
    for config in results["configs"].values():
        source = config.get("metadata", {}).get("config_source")
        if source is not None:
            config["metadata"]["config_source"] = _without_machine(source)


def command(sweep: Sweep, cell: Cell) -> str:
    """The `lm_eval` command of the very same run."""
    words = ["lm_eval", "--model", sweep.model]
    if arguments := sweep.model_arguments(cell):
        words += ["--model_args", _pairs(arguments)]
    words += ["--tasks", cell.task]
    if cell.metadata:
        words += ["--metadata", *(f"{name}={value}" for name, value in cell.metadata.items())]
    for name, value in (
        ("num_fewshot", cell.num_fewshot),
        ("limit", sweep.limit),
        ("batch_size", sweep.batch_size),
        ("device", sweep.device),
        ("seed", cell.seed),
        ("include_path", sweep.include_path),
        ("system_instruction", sweep.system_instruction),
    ):
        if value is not None:
            words += [f"--{name}", str(value)]
    if sweep.apply_chat_template:
        template = [] if sweep.apply_chat_template is True else [sweep.apply_chat_template]
        words += ["--apply_chat_template", *template]
    if sweep.confirm_run_unsafe_code:
        words.append("--confirm_run_unsafe_code")
    return shlex.join(words)


def _pairs(arguments: dict[str, Any]) -> str:
    """`name=value,name=value`, or JSON where a value would not survive that."""
    if any(isinstance(value, (dict, list)) or set(str(value)) & set(",={") for value in arguments.values()):
        return json.dumps(arguments)
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def _without_machine(source: str) -> str:
    """A task's YAML within the package that has it; of any other folder the bare name."""
    path = PurePath(source)
    for folder, package in ((tasks_path(), "mdlm_lm_eval"), (Path(lm_eval.__file__).parent / "tasks", "lm_eval")):
        if path.is_relative_to(folder):
            return f"{package}/tasks/{path.relative_to(folder).as_posix()}"
    return path.name


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.unfinished")
