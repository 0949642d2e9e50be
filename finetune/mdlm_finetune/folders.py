"""The folders of a run: which it may write, and what continues or replaces what lies there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from peft.utils import CONFIG_NAME
from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import UnusableFile, check_writable, read_bytes, read_json, write_whole
from mdlm_lm_eval.results.sentences import one_line

RECIPE = "recipe.yaml"  # in the checkpoint folder, for resuming
CHECKPOINTS = "checkpoint-*"
# A resumed run may change what rules where and when something is written, not what is learned: beginnings of names.
FREE_ON_RESUMING = (
    *("output_dir", "evaluation_limit", "license", "report_to", "run_name", "disable_tqdm"),
    *("logging_", "log_", "save_", "hub_"),
)


def checkpoint_folder(arguments: FinetuneArguments) -> Path:
    """Where the Trainer's checkpoints lie."""
    return Path(f"{arguments.folder}.checkpoints")


def merged_folder(arguments: FinetuneArguments) -> Path:
    """Where the model with the adapter folded in goes."""
    return Path(f"{arguments.folder}.merged")


def evaluation_folder(arguments: FinetuneArguments) -> Path:
    """Where the results behind the card's table lie."""
    return Path(f"{arguments.folder}.evaluation")


@contextmanager
def writing(arguments: FinetuneArguments) -> Iterator[None]:
    """Turns what a full disk and the like raise into one sentence, and removes checkpoints that are not whole."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # torch.save has no error of its own, and its words help nobody.
        is_torch = any(part in str(error) for part in ("inline_container", "PytorchStreamWriter"))
        if isinstance(error, RuntimeError) and not is_torch:
            raise
        for folder in checkpoint_folder(arguments).glob(CHECKPOINTS):
            if not (folder / TRAINER_STATE_NAME).is_file():
                shutil.rmtree(folder, ignore_errors=True)
        why = "a file could not be written whole; is the disk full?" if is_torch else one_line(error)
        raise OptionError(f"output_dir={arguments.folder} cannot be written: {why}") from error


@contextmanager
def leaving_no_empty_folder(arguments: FinetuneArguments) -> Iterator[None]:
    """Removes the checkpoint folder, which the Trainer makes at once, where nothing came to lie in it."""
    try:
        yield
    finally:
        with suppress(OSError):
            checkpoint_folder(arguments).rmdir()


def check_folders(
    arguments: FinetuneArguments, recipe: dict[str, Any], *, resume: bool, overwrite: bool, merge: bool
) -> None:
    """Raises OptionError where what the run would write is another run's, is no run's, or cannot be written.

    `recipe` is everything that the run was given, and the circumstances that decide its weights, too.
    """
    output, checkpoints = arguments.folder, checkpoint_folder(arguments)
    check_writable(output.parent, "output_dir")
    if output.exists() and not overwrite:
        is_adapter = (output / CONFIG_NAME).is_file()
        score = ", score the adapter in it with --evaluate" if is_adapter else ""
        raise OptionError(
            f"output_dir={output} exists already; name another folder{score}, or replace it with --overwrite"
        )
    if output.exists() and not (output / CONFIG_NAME).is_file():
        raise OptionError(f"output_dir={output} cannot be replaced: it holds no {CONFIG_NAME}, so it is no adapter")
    if merge:
        check_merged(arguments, overwrite=overwrite)
    if overwrite or not any(checkpoints.glob(CHECKPOINTS)):
        return
    if not resume:
        raise OptionError(f"{checkpoints} holds another run; continue it with --resume, or replace it with --overwrite")
    try:
        stored = dict(yaml.safe_load(read_bytes(checkpoints / RECIPE).decode()))
    except (OSError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise OptionError(
            f"{checkpoints / RECIPE} cannot be read, so that it cannot be continued: {one_line(error)}"
        ) from error
    before, now = _what_is_learned(stored), _what_is_learned(recipe)
    for name in sorted(before.keys() | now.keys(), key=str):
        if now.get(name) != before.get(name):
            raise OptionError(
                f"{name}={now.get(name, 'its default')} is not allowed with --resume: {checkpoints} holds a run with "
                f"{name}={before.get(name, 'its default')}"
            )


def check_merged(arguments: FinetuneArguments, *, overwrite: bool) -> None:
    """Raises OptionError where something lies in the place of the merged model."""
    merged = merged_folder(arguments)
    if merged.exists() and not overwrite:
        raise OptionError(f"{merged} exists already; move it away")
    if merged.exists() and not (merged / "config.json").is_file():
        raise OptionError(f"{merged} cannot be replaced: it holds no config.json, so it is no model")


def check_adapter(arguments: FinetuneArguments) -> None:
    """Raises OptionError where `output_dir` holds no adapter with a card."""
    for name in (CONFIG_NAME, "README.md"):
        if not (arguments.folder / name).is_file():
            raise OptionError(f"output_dir={arguments.folder} holds no {name}, so there is no adapter to evaluate")


def begin(arguments: FinetuneArguments, recipe: dict[str, Any], *, overwrite: bool, merge: bool) -> None:
    """Makes the checkpoint folder this run's own, and removes what it replaces."""
    checkpoints = checkpoint_folder(arguments)
    if overwrite:
        replaced = [arguments.folder, evaluation_folder(arguments), *checkpoints.glob(CHECKPOINTS)]
        for folder in [*replaced, merged_folder(arguments)] if merge else replaced:
            if folder.exists():
                shutil.rmtree(folder)
    checkpoints.mkdir(parents=True, exist_ok=True)
    write_whole(checkpoints / RECIPE, yaml.safe_dump(recipe, sort_keys=False))


def last_checkpoint(arguments: FinetuneArguments) -> str | None:
    """The newest checkpoint to go on from: a whole one, with the Trainer's state, which is written last."""
    by_step = {}
    for state in checkpoint_folder(arguments).glob(f"{CHECKPOINTS}/{TRAINER_STATE_NAME}"):
        if all(path.is_file() or path.is_dir() for path in state.parent.iterdir()):  # a pipe would be waited for
            with suppress(UnusableFile, LookupError, TypeError):
                by_step[read_json(state)["global_step"]] = state.parent
    newest = max((step for step in by_step if isinstance(step, int) and step <= arguments.max_steps), default=None)
    return None if newest is None else str(by_step[newest])


def _what_is_learned(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the weights."""
    return {name: value for name, value in recipe.items() if not str(name).startswith(FREE_ON_RESUMING)}
