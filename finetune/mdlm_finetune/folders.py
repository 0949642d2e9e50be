"""The folders of a run: which it may write, and what continues or replaces what lies there."""

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from peft.utils import CONFIG_NAME
from transformers.trainer import TRAINER_STATE_NAME

from mdlm_finetune.options import FinetuneOptions
from mdlm_lm_eval.options import OptionError

RECIPE = "recipe.yaml"  # in the checkpoint folder, for resuming
CHECKPOINTS = "checkpoint-*"
# A resumed run may change what rules where and when something is written, not what is learned.
FREE_ON_RESUMING = ("output", "save_steps", "evaluation_limit")
FREE_IN_TRAINER = ("logging_", "log_", "save_", "report_to", "run_name", "disable_tqdm")  # beginnings of names


def checkpoint_folder(options: FinetuneOptions) -> Path:
    """Where the Trainer's checkpoints lie."""
    return Path(f"{options.output}.checkpoints")


def merged_folder(options: FinetuneOptions) -> Path:
    """Where the model with the adapter folded in goes."""
    return Path(f"{options.output}.merged")


def evaluation_folder(options: FinetuneOptions) -> Path:
    """Where the results behind the card's table lie."""
    return Path(f"{options.output}.evaluation")


def check_folders(options: FinetuneOptions, *, resume: bool, overwrite: bool, merge: bool) -> None:
    """Raises OptionError where what the run would write is another run's, is no run's, or cannot be written."""
    output, checkpoints = Path(options.output), checkpoint_folder(options)
    if output.exists() and not overwrite:
        raise OptionError(f"output={output} exists already; name another folder, or replace it with --overwrite")
    if output.exists() and not (output / CONFIG_NAME).is_file():
        raise OptionError(f"output={output} cannot be replaced: it holds no {CONFIG_NAME}, so it is no adapter")
    if merge:
        check_merged(options, overwrite=overwrite)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent):
            pass
    except OSError as error:
        raise OptionError(f"output={output}: cannot be written: {error}") from error
    if overwrite or not any(checkpoints.glob(CHECKPOINTS)):
        return
    if not resume:
        raise OptionError(f"{checkpoints} holds another run; continue it with --resume, or replace it with --overwrite")
    try:
        stored = FinetuneOptions(**yaml.safe_load((checkpoints / RECIPE).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise OptionError(f"{checkpoints / RECIPE} cannot be read, so that it cannot be continued: {error}") from error
    before, now = _what_is_learned(stored), _what_is_learned(options)
    for name in now:
        if now[name] != before[name]:
            raise OptionError(
                f"{name}={now[name]} is not allowed with --resume: {checkpoints} holds a run with {name}={before[name]}"
            )


def check_merged(options: FinetuneOptions, *, overwrite: bool) -> None:
    """Raises OptionError where something lies in the place of the merged model."""
    merged = merged_folder(options)
    if merged.exists() and not overwrite:
        raise OptionError(f"{merged} exists already; move it away")
    if merged.exists() and not (merged / "config.json").is_file():
        raise OptionError(f"{merged} cannot be replaced: it holds no config.json, so it is no model")


def check_adapter(options: FinetuneOptions) -> None:
    """Raises OptionError where `options.output` holds no adapter with a card."""
    for name in (CONFIG_NAME, "README.md"):
        if not (Path(options.output) / name).is_file():
            raise OptionError(f"output={options.output} holds no {name}, so there is no adapter to evaluate")


def claim(options: FinetuneOptions, *, overwrite: bool, merge: bool) -> None:
    """Makes the checkpoint folder this run's own, and removes what it replaces."""
    checkpoints = checkpoint_folder(options)
    if overwrite:
        replaced = [Path(options.output), evaluation_folder(options), *checkpoints.glob(CHECKPOINTS)]
        for folder in [*replaced, merged_folder(options)] if merge else replaced:
            if folder.exists():
                shutil.rmtree(folder)
    checkpoints.mkdir(parents=True, exist_ok=True)
    (checkpoints / RECIPE).write_text(yaml.safe_dump(asdict(options), sort_keys=False), encoding="utf-8")


def last_checkpoint(options: FinetuneOptions) -> str | None:
    """The newest checkpoint to go on from.

    It is whole, with the Trainer's state, which is written last, and not of the last step: the Trainer would go on
    from that with a step too many.
    """
    states = checkpoint_folder(options).glob(f"{CHECKPOINTS}/{TRAINER_STATE_NAME}")
    by_step = {int(state.parent.name.split("-")[1]): state.parent for state in states}
    newest = max((step for step in by_step if step < options.steps), default=None)
    return None if newest is None else str(by_step[newest])


def _what_is_learned(options: FinetuneOptions) -> dict[str, Any]:
    """The settings that decide the weights."""
    settings = {name: value for name, value in asdict(options).items() if name not in FREE_ON_RESUMING}
    trainer = {name: value for name, value in options.trainer.items() if not name.startswith(FREE_IN_TRAINER)}
    return settings | {"trainer": trainer}
