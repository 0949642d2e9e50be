"""lm-eval's own writer of results: cleaned before it writes, and checked after, as it only logs what goes wrong."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.privacy import published, published_instruction
from mdlm_lm_eval.values import OptionError

_saved: list[Path] = []
_unsaved: list[str] = []


def save_whole(evaluation_tracker: ModuleType) -> None:
    """Lets `EvaluationTracker` of lm-eval's module clean and name what it writes of `--model mdlm`, and check it.

    What was written, and what could not be, is told by `saved_files`, when the scores have been shown.
    """
    tracker = vars(evaluation_tracker)["EvaluationTracker"]
    tracker.save_results_aggregated = _cleaned_and_checked(tracker.save_results_aggregated)
    tracker.save_results_samples = _checked(tracker.save_results_samples)


def send_cleaned(loggers: ModuleType) -> None:
    """Lets W&B's and Trackio's loggers of lm-eval's module clean what they send of `--model mdlm`."""
    for name in ("WandbLogger", "TrackioLogger"):
        logger = vars(loggers)[name]
        logger.post_init = _cleaned(logger.post_init)


def saved_files() -> list[Path]:
    """What was written since the last call. Raises OptionError naming what could not be."""
    saved, unsaved = list(_saved), "; ".join(_unsaved)
    _saved.clear()
    _unsaved.clear()
    if unsaved:
        raise OptionError(unsaved)
    return saved


def clean_results(results: dict[str, Any]) -> None:
    """Takes secrets and the machine's folders out of results that are about to be written."""
    results["config"] = published(results["config"])
    for config in results.get("configs", {}).values():
        config |= {name: published(config[name]) for name in ("dataset_path", "dataset_kwargs") if name in config}
        # lm-eval puts all model arguments into it, tokens included.
        metadata = config.get("metadata") or {}
        if source := metadata.get("config_source"):
            metadata = metadata | {"config_source": _within_package(source)}
        if metadata:
            config["metadata"] = published(metadata)


def check_saved(tracker: Any, samples: dict[str, int] | None = None) -> list[Path]:
    """A tracker's result file, or those of `samples` (task -> how many). Raises OptionError unless they are whole."""
    path = Path(tracker.output_path)
    folder = path.parent if path.suffix == ".json" else path / str(tracker.general_config_tracker.model_name_sanitized)
    date_id = vars(tracker).get("date_id", "")  # set when the first file is about to be written
    try:
        if samples is None:
            result = next(folder.glob(f"*_{date_id}.json"), folder)
            read_json(result)
            return [result]
        for task, n in samples.items():
            with open(folder / f"samples_{task}_{date_id}.jsonl", encoding="utf-8") as lines:
                if sum(line.endswith("\n") for line in lines) != n:
                    raise UnusableFile(f"the samples of {task} are cut off")
        return [folder / f"samples_{task}_{date_id}.jsonl" for task in samples]
    except (UnusableFile, OSError) as error:
        sentence = f"--output_path {path}: the results could not be written whole; is the disk full? ({error})"
        raise OptionError(sentence) from error


def _within_package(source: str) -> str:
    """A task's YAML within the package that has it; of any other folder the bare name."""
    import lm_eval

    path = PurePath(source)
    for folder, package in ((tasks_path(), "mdlm_lm_eval"), (Path(lm_eval.__file__).parent / "tasks", "lm_eval")):
        if path.is_relative_to(folder):
            return f"{package}/tasks/{path.relative_to(folder).as_posix()}"
    return path.name if path.is_absolute() else source


def _cleaned_and_checked(save: Callable[..., None]) -> Callable[..., None]:
    @wraps(save)
    def cleaned_and_checked(self: Any, results: dict[str, Any], samples: dict[str, Any] | None = None) -> None:
        if results.get("config", {}).get("mdlm"):
            from lm_eval.utils import sanitize_model_name

            clean_results(results)
            mdlm = results["config"]["mdlm"]
            names = self.general_config_tracker
            names.model_name = "+".join(filter(None, (mdlm["pretrained"], mdlm["adapter"])))
            names.model_name_sanitized = sanitize_model_name(names.model_name)
            if names.system_instruction:
                names.system_instruction = published_instruction(names.system_instruction)
        save(self, results=results, samples=samples)
        _note(self)

    return cleaned_and_checked


def _cleaned(post_init: Callable[..., None]) -> Callable[..., None]:
    @wraps(post_init)
    def cleaned(self: Any, results: dict[str, Any]) -> None:
        if results.get("config", {}).get("mdlm"):
            clean_results(results)
        post_init(self, results)

    return cleaned


def _checked(save: Callable[..., None]) -> Callable[..., None]:
    @wraps(save)
    def checked(self: Any, task_name: str, samples: list[dict[str, Any]]) -> None:
        save(self, task_name=task_name, samples=samples)
        _note(self, {task_name: len(samples)})

    return checked


def _note(tracker: Any, samples: dict[str, int] | None = None) -> None:
    try:
        if tracker.output_path:
            _saved.extend(check_saved(tracker, samples))
    except OptionError as error:
        _unsaved.append(str(error))
