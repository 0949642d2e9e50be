"""One cell on disk: an ordinary lm-eval result file in a folder that appears whole, or not at all."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lm_eval.loggers import EvaluationTracker

from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.commands import typed_pairs
from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.privacy import published, published_command
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.results.tracker import check_saved, clean_results
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.tasks import Tasks

# lm-eval's readers look for results_*.json; a cell has one result, so no date in the name.
RESULT_FILE = "results_cell.json"


def cell_folder(sweep: Sweep, cell: Cell, output: Path) -> Path:
    """Where a cell's files lie."""
    return output / sweep.model_folder(cell.peft) / cell.name


def cell_settings(sweep: Sweep, cell: Cell, tasks: Tasks, digest: Callable[..., str | None]) -> dict[str, Any]:
    """Everything that decides a cell's scores, except the versions of code, which lm-eval records itself.

    Without secrets and paths: the `digest`s of the weights tell two folders of one name apart. What tasks outside the
    suite are is named only where there are such.
    """
    states = tasks.states(cell)
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
        "task_suite": suite_info(tasks.names(cell)),
        **({"tasks": states} if states else {}),
        "weights": digest(
            str(sweep.model_args.get("pretrained", default_model_path())), sweep.model_args.get("subfolder") or ""
        ),
        "adapter_weights": None if cell.peft is None else digest(cell.peft),
    }
    return published(json.loads(json.dumps(settings, default=str)))  # as the file will have it


def recorded_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a cell's result was made with."""
    return published(result["config"]["mdlm_sweep"]["settings"])


def is_finished(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether a cell's result lies there. One of fewer questions does not count: the cell's own replaces it.

    Raises OptionError where something else lies in its place.
    """
    path = folder / RESULT_FILE
    try:
        stored = recorded_settings(read_json(path))
        different = [name for name in settings | stored if stored.get(name) != settings.get(name)]
    except (UnusableFile, LookupError, TypeError, AttributeError) as error:
        if not folder.exists():
            return False
        raise OptionError(
            f"{folder} is in the way and holds no result of a sweep; move it, or name another --output_path"
        ) from error
    if different == ["limit"] and is_enlarged(stored["limit"], settings["limit"]):
        return False
    if different:
        differences = [f"{name} was {stored.get(name)} and is {settings.get(name)}" for name in different]
        raise OptionError(
            f"{path} is in the way, a result of other settings ({'; '.join(differences)}); move it, or name another "
            "--output_path"
        )
    return True


def is_enlarged(before: float | None, now: float | None) -> bool:
    """Whether a limit covers more questions than one before: two numbers of them, or two shares, or now all."""
    if before is None or now is None:
        return before is not None
    return before < now and (before < 1) == (now < 1)


def write_cell(folder: Path, results: dict[str, Any], tracker: EvaluationTracker) -> None:
    """Writes a cell's result and, where there are any, its samples into an empty folder, by lm-eval's own tracker.

    Raises OSError or OptionError where they cannot be written.
    """
    samples = results.pop("samples", None) or {}
    tracker.output_path = str(folder / "results.json")
    tracker.save_results_aggregated(results=results, samples=samples)
    check_saved(tracker)
    for task, of_task in samples.items():
        tracker.save_results_samples(task_name=task, samples=of_task)
        check_saved(tracker, {task: len(of_task)})
    for path in list(folder.iterdir()):
        path.rename(path.with_name(path.name.replace(tracker.date_id, "cell")))


def read_score(folder: Path) -> tuple[str, int] | None:
    """A finished cell's first score, as `acc 0.512`, and its number of questions; None where nothing can be read."""
    try:
        result = read_json(folder / RESULT_FILE)
        return first_score(result), sum(n["effective"] for n in result["n-samples"].values())
    except (UnusableFile, LookupError, TypeError, AttributeError):
        return None


def first_score(results: dict[str, Any]) -> str:
    """Of lm-eval's results, of the group where there is one."""
    values = next(iter((results.get("groups") or results["results"]).values()))
    scores = [f"{key} {value:.4g}" for key, value in values.items() if "," in key and isinstance(value, float)]
    return scores[0].replace(",none", "") if scores else "no score"


def record_cell(sweep: Sweep, cell: Cell, settings: dict[str, Any], results: dict[str, Any]) -> None:
    """Puts into a result what lm-eval cannot know of a model that was loaded before, and how to get it again."""
    results["config"]["model"] = sweep.model
    clean_results(results)
    results["config"]["mdlm_sweep"] = {"settings": settings, "command": published_command(command(sweep, cell))}


def command(sweep: Sweep, cell: Cell) -> str:
    """The `lm_eval` command of the very same run."""
    words = ["lm_eval", "--model", sweep.model]
    if arguments := sweep.model_arguments(cell):
        words += ["--model_args", typed_pairs(arguments)]
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
