"""What a recipe may set beside transformers' TrainingArguments, and how it is found. Imports nothing that is slow."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from mdlm_finetune.objectives import objective_names
from mdlm_lm_eval.options import OptionError, unknown_option
from mdlm_lm_eval.results.files import UnusableFile, read_bytes
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.values import must_be
from mdlm_lm_eval.yaml_settings import read_yaml

RECIPES = Path(__file__).parent / "recipes"
_MOST_BYTES = 2**20
GENERATED = "number_questions"  # what `dataset_name` may be beside the hub's data sets; made in generated.py

# What keys and flags were called before; a value here is a sentence's end.
RENAMED = {
    "output": "output_dir",
    "pretrained": "model_name_or_path",
    "data": f"train_file or dataset_name (generated is {GENERATED})",
    "data_config": "dataset_config",
    "split": "dataset_train_split",
    "chat_template": "apply_chat_template",
    "n_examples": "max_train_samples",
    "batch_size": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "steps": "max_steps",
    "lora_rank": "lora_r",
    "lora_targets": "lora_target_modules",
    "trainer": "the keys that stood under it, by themselves",
    "set": "a flag of its own for each key: --max_steps 3",
}


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class Recipe:
    """Names are TRL's, PEFT's and transformers'; the defaults are the paper's (appendix B)."""

    output_dir: str | None = _option(
        None, "the adapter's folder, which appears whole at the end; checkpoints lie in OUTPUT_DIR.checkpoints"
    )
    objective: str = _option("mask_agnostic", f"one of {', '.join(objective_names())}")
    model_name_or_path: str = _option(BUILT_IN, "built-in, a hub id or a folder, of any family of --model mdlm")
    train_file: str | None = _option(None, "a .jsonl, .json or .parquet file to train on")
    dataset_name: str | None = _option(None, f"or a data set on the hub, or {GENERATED}, which is generated")
    dataset_config: str | None = _option(None, "of a hub data set that has several")
    dataset_train_split: str = _option("train", "of a hub data set")
    apply_chat_template: bool = _option(False, "the tokenizer's, for instruct models")
    max_train_samples: int | None = _option(None, "examples, chosen by the seed; at most what max_steps can use")
    max_length: int = _option(1024, "tokens of an example and what is appended; longer ones are counted and skipped")
    max_steps: int = _option(930, "optimiser steps")
    per_device_train_batch_size: int = _option(3, "examples a forward-backward pass of a process")
    gradient_accumulation_steps: int = _option(43, "passes an optimiser step")
    learning_rate: float = _option(1e-5, "at its peak")
    lora_r: int = _option(64, "rank of the adapter")
    lora_alpha: int = _option(128, "its scaling")
    lora_dropout: float = _option(0.0, "within the adapter")
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"],
        metadata={"help": "names (q_proj v_proj), a regular expression of whole names, or all-linear"},
    )
    dtype: Literal["float32", "bfloat16", "float16"] = _option("bfloat16", "of frozen weights; an adapter has float32")
    attn_implementation: str | None = _option(None, "sdpa, eager, flash_attention_2, ...")
    seed: int = _option(0, "of data, noise and the adapter's initial weights")
    save_steps: int = _option(100, "steps between checkpoints")
    save_total_limit: int | None = _option(2, "checkpoints that are kept")
    logging_steps: int = _option(10, "steps between lines of the log")
    evaluation_limit: int = _option(50, "questions a task for the card's table; 0 leaves it out")
    license: str | None = _option(None, "of the adapter, for its card: apache-2.0, mit, ...")


@dataclass
class Actions:
    """What the command does with a recipe."""

    resume: bool = _option(False, "continue from the last checkpoint of this very recipe")
    overwrite: bool = _option(False, "replace the adapter and checkpoints of another run")
    merge: bool = _option(False, "also write OUTPUT_DIR.merged, the model with the adapter folded in")
    evaluate: bool = _option(False, "do not train: score (and merge) the adapter that is there")

    def __post_init__(self) -> None:
        if self.resume + self.overwrite + self.evaluate > 1:
            raise OptionError("--resume, --overwrite and --evaluate exclude one another")


def help_text(description: str | None) -> str:
    """Our own flags, without importing transformers for its 120."""
    parser = argparse.ArgumentParser(
        prog="mdlm-finetune",
        usage="mdlm-finetune --config RECIPE [--KEY VALUE ...]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every argument of transformers' TrainingArguments is a key, too, and every field of the objective:\n"
        "mdlm-finetune --objective NAME --help-all lists them.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument("--config", metavar="RECIPE", help=f"a YAML file of keys, or one of {', '.join(packaged())}")
    for group, title in ((Actions, "what to do"), (Recipe, "keys of a recipe, and flags that win over them")):
        options = parser.add_argument_group(title)
        for each in fields(group):
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            words = " ".join(default) if isinstance(default, list) else default
            shown = "" if default is None or default is False else f" (default: {words})"
            options.add_argument(f"--{each.name}", metavar="", help=each.metadata["help"] + shown)
    return parser.format_help()


def packaged() -> list[str]:
    """Names of the recipes in this package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(config: str) -> dict[str, Any]:
    """The keys and values of a recipe: one of ours by name, or a file. Raises OptionError for what is no recipe."""
    path = RECIPES / f"{config}.yaml" if config in packaged() else Path(config)
    try:
        if not path.exists():
            raise OptionError(f"must be a file or one of {', '.join(packaged())}")
        settings = read_yaml(read_bytes(path, at_most=_MOST_BYTES).decode())
    except (OptionError, UnusableFile) as error:
        raise OptionError(f"config={config}: {error}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise OptionError(f"config={config}: cannot be read: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise OptionError(f"config={config}: must hold keys and values, a line each")
    return settings


def as_flags(settings: Mapping[Any, Any], known: Iterable[str]) -> list[str]:
    """The flags that say the same, so that one strict parser reads both. Raises OptionError for keys not `known`."""
    flags: list[str] = []
    for name, value in settings.items():
        if name not in known:
            raise unknown_key(str(name), value, known)
        if isinstance(value, list):
            flags += [f"--{name}", *(_typed(name, each) for each in value)] if value else []
        elif value is not None:
            flags.append(f"--{name}={_typed(name, value)}")
    return flags


def unknown_key(name: str, value: object, known: Iterable[str]) -> OptionError:
    """What to say of a key or flag that does not exist."""
    if name in RENAMED:
        return OptionError(f"{name} is now {RENAMED[name]}")
    return unknown_option("key", name, value, known, listed=[each.name for each in fields(Recipe)])


def _typed(name: str, value: Any) -> str:
    """As on a command line."""
    try:
        return value if isinstance(value, str) else json.dumps(value, default=str)  # YAML has dates
    except (ValueError, RecursionError) as error:  # and values that hold themselves
        raise must_be(name, "a value, or a list of values", value) from error


def take_flag(words: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """The last value of --name, which may have hyphens as in HfArgumentParser, and the other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    try:
        known, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise OptionError(f"--{name}: {error.message}") from error
    return getattr(known, name), rest
