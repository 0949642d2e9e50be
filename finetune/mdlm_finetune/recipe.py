"""Recipes: the settings of a training run. Importing this module loads neither torch nor transformers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mdlm_finetune.objectives import flag
from mdlm_lm_eval.command_line import parser_of, read_recipe, recipes_in, refuse_rest
from mdlm_lm_eval.loader import load_plugins
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import ModelOptions, OptionError
from mdlm_lm_eval.registry import OBJECTIVES

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from mdlm_finetune.objective import Objective

RECIPES = Path(__file__).parent / "recipes.yaml"
NUMBER_QUESTIONS = "number_questions"  # a `dataset_name` that is generated (see data.py), not downloaded
USAGE = "mdlm-finetune --config RECIPE [--KEY VALUE ...]"
# Settings that do not affect the weights: beginnings of names.
_FREE = "output_dir evaluation_limit license report_to run_name disable_tqdm logging_ log_ save_ hub_"
_MAX_LENGTH = 1024
_ACTIONS = ("config", "resume", "overwrite", "merge", "evaluate")  # flags of the command, no keys of a recipe

# Arguments of transformers' Trainer that would have no effect here or publish secrets -> what to do instead.
_REFUSED = {
    "resume_from_checkpoint": "--resume continues from the last checkpoint",
    "save_only_model": "--resume needs the optimiser's state",
    "label_smoothing_factor": "the objective has its own loss",
    # The Trainer would upload a pickle of all arguments, hub_token among them, and not our card.
    "push_to_hub": "upload the adapter and its card with `hf upload REPOSITORY OUTPUT_DIR`",
    "hub_token": "set the environment variable HF_TOKEN",
}


@dataclass(frozen=True)
class Recipe:
    """Our keys, and those of TrainingArguments with other defaults here, which are the paper's (appendix B)."""

    output_dir: str = flag(MISSING, "folder for the adapter; checkpoints go to OUTPUT_DIR.checkpoints")
    objective: str = flag("mask_agnostic", f"training objective: {', '.join(OBJECTIVES.names())}, or one of a plug-in")
    plugins: str | None = flag(None, ModelOptions.declared()["plugins"].help)
    model_name_or_path: str = flag(BUILT_IN, "model to train: hub id, folder or built-in name")
    train_file: str | None = flag(None, "file to train on (.jsonl, .json or .parquet)")
    dataset_name: str | None = flag(None, f"or a dataset on the hub, or {NUMBER_QUESTIONS} (generated)")
    dataset_config: str | None = flag(None, "configuration of the hub dataset, if it has several")
    dataset_train_split: str = flag("train", "split of the hub dataset")
    apply_chat_template: bool = flag(False, "use the tokenizer's chat template, for instruct models")
    max_train_samples: int | None = flag(None, "maximum number of examples, drawn by the seed")
    max_length: int | None = flag(
        None,
        "maximum tokens of an example with its appended tokens; longer examples are skipped (default: 1024, or the "
        "model's context if that is shorter)",
    )
    max_steps: int = flag(930, "number of optimiser steps")
    per_device_train_batch_size: int = flag(3, "examples per forward-backward pass and process")
    gradient_accumulation_steps: int = flag(43, "forward-backward passes per optimiser step")
    learning_rate: float = flag(1e-5, "peak learning rate")
    lora_r: int = flag(64, "rank of the adapter")
    lora_alpha: int = flag(128, "scaling of the adapter")
    lora_dropout: float = flag(0.0, "dropout of the adapter")
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"],
        metadata={"help": "layers to adapt: names (q_proj v_proj), a regular expression of whole names, or all-linear"},
    )
    dtype: Literal["float32", "bfloat16", "float16"] = flag(
        "bfloat16", "of the frozen weights; the adapter has float32"
    )
    attn_implementation: str | None = flag(None, "attention: sdpa, eager, flash_attention_2, ...")
    seed: int = flag(0, "seed of data, noise and the adapter's initial weights")
    save_steps: int = flag(100, "steps between checkpoints")
    save_total_limit: int | None = flag(2, "number of checkpoints to keep")
    logging_steps: int = flag(10, "steps between lines of the log")
    evaluation_limit: int = flag(50, "questions per task for the scores in the model card; 0 skips them")
    license: str | None = flag(None, "license of the adapter, for its model card: apache-2.0, mit, ...")
    resume: bool = flag(False, "continue from the last checkpoint of the same recipe")
    overwrite: bool = flag(False, "replace the adapter and checkpoints of another run")
    merge: bool = flag(False, "also write OUTPUT_DIR.merged, the model with the adapter merged")
    evaluate: bool = flag(False, "score (and with --merge, merge) an existing adapter without training")

    def __post_init__(self) -> None:
        if (self.train_file is None) == (self.dataset_name is None):
            raise OptionError("give either train_file or dataset_name")
        if self.resume + self.overwrite + self.evaluate > 1:
            raise OptionError("--resume, --overwrite and --evaluate exclude one another")

    @property
    def longest(self) -> int:
        """The tokens of an example and of what is appended, at most."""
        return self.max_length or _MAX_LENGTH

    @property
    def folder(self) -> Path:
        """The folder of the adapter."""
        return Path(self.output_dir)

    def beside(self, suffix: str) -> Path:
        """A folder or file beside the adapter's: its `checkpoints`, its `merged` model, its `evaluation`."""
        return Path(f"{self.folder}.{suffix}")


class Run(NamedTuple):
    """A recipe with its objective and TrainingArguments.

    settings: the keys that differ from their defaults.
    overridden: the keys that decide the weights, but for the seed, and have another value than in the recipe's file.
    """

    recipe: Recipe
    objective: Objective
    training: TrainingArguments  # its output_dir is the folder of checkpoints
    settings: Mapping[str, Any]
    overridden: Sequence[str] = ()

    @property
    def n_passes(self) -> int:
        """Number of forward-backward passes of a process."""
        return self.recipe.max_steps * self.recipe.gradient_accumulation_steps

    @property
    def n_examples(self) -> int:
        """The most examples that the run can use."""
        batch = self.training.train_batch_size * self.training.world_size * self.recipe.gradient_accumulation_steps
        return min(self.recipe.max_train_samples or batch * self.recipe.max_steps, batch * self.recipe.max_steps)


def decides_weights(name: str) -> bool:
    """Whether a key can change the adapter's weights, or names the data that does."""
    return name not in _ACTIONS and not name.startswith(tuple(_FREE.split()))


def read_arguments(words: Sequence[str]) -> Run:
    """The run of a command line: the recipe of --config, overridden by the other flags.

    All arguments of transformers' TrainingArguments and all fields of the objective are keys, too. Raises OptionError
    for unknown keys and for values of ours that are not allowed.
    """
    import torch
    from transformers import HfArgumentParser, TrainingArguments

    in_file, objective = _in_file(words)
    if "--help-all" in words:
        print(_all_help(objective))
        sys.exit(0)
    kinds = (TrainingArguments, Recipe, objective)  # of keys that several have, the last one counts
    style = {"prog": "mdlm-finetune", "usage": USAGE, "allow_abbrev": False, "add_help": False}
    parser = HfArgumentParser(kinds, conflict_handler="resolve", **style)
    parser.add_argument("--config")
    found, unknown = parser.parse_known_args([*_flags(in_file), *words])
    refuse_rest(unknown, vars(found), "key")
    defaults = vars(parser.parse_known_args(["--output_dir="])[0])
    changed = {name: value for name, value in vars(found).items() if value != defaults[name]}
    in_recipe = vars(parser.parse_known_args([*_flags(in_file), "--output_dir="])[0]) if found.config else vars(found)
    decisive = [name for name in vars(found) if decides_weights(name) and name != "seed"]
    overridden = [name for name in decisive if vars(found)[name] != in_recipe[name]]
    for name in changed.keys() & _REFUSED.keys():
        raise OptionError(f"{name} is not allowed; {_REFUSED[name]}")

    def values(kind: type) -> dict[str, Any]:
        return {each.name: getattr(found, each.name) for each in fields(kind) if each.init}

    recipe = Recipe(**values(Recipe))
    # Without a GPU, transformers refuses bf16 unless use_cpu is set.
    found.use_cpu = found.use_cpu or not torch.accelerator.is_available()
    # Every pass uses the whole adapter. Searching for unused weights takes time, and fails with checkpointing.
    found.ddp_find_unused_parameters = bool(found.ddp_find_unused_parameters)
    training = TrainingArguments(**values(TrainingArguments) | {"output_dir": str(recipe.beside("checkpoints"))})
    if training.n_gpu > 1:
        # The Trainer would copy the model into threads, without the hooks that the Denoiser registers.
        start = f"torchrun --nproc-per-node {training.n_gpu} -m mdlm_finetune"
        raise OptionError(f"one process cannot use {training.n_gpu} GPUs; start `{start}`, or set CUDA_VISIBLE_DEVICES")
    settings = {name: value for name, value in changed.items() if name not in _ACTIONS}
    return Run(recipe, objective(**values(objective)), training, settings, overridden)


def _in_file(words: Sequence[str]) -> tuple[dict[str, Any], type[Objective]]:
    """The settings of the recipe's file that the flags do not replace, and the objective, whose fields are flags.

    Loads plug-ins, which may register the objective.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "objective", "plugins", "train_file", "dataset_name"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    given = parser.parse_known_args(words)[0]
    in_file = read_recipe(recipes_in(RECIPES), given.config) if given.config else {}
    if given.train_file or given.dataset_name:  # either flag replaces the recipe's data
        in_file = {name: value for name, value in in_file.items() if name not in ("train_file", "dataset_name")}
    load_plugins(given.plugins or in_file.get("plugins"))
    name = given.objective or in_file.get("objective", Recipe.objective)
    if name not in OBJECTIVES.names():
        raise OptionError(f"objective={name} does not exist; the objectives are {', '.join(OBJECTIVES.names())}")
    objective: type[Objective] = OBJECTIVES.get(name)
    return in_file, objective


def _all_help(objective: type[Objective]) -> str:
    """Help on all keys: those of the objective, of the recipe, and the others of TrainingArguments."""
    from transformers import HfArgumentParser, TrainingArguments

    how: dict[str, Any] = {"prog": "mdlm-finetune", "allow_abbrev": False, "add_help": False}
    ours = HfArgumentParser((objective, Recipe), usage=USAGE, **how)
    theirs = HfArgumentParser(
        TrainingArguments, usage=argparse.SUPPRESS, description="Of transformers' Trainer:", **how
    )
    hidden = {each.name for kind in (objective, Recipe) for each in fields(kind)} | _REFUSED.keys()
    for action in theirs._actions:
        if action.dest in hidden:
            action.help = argparse.SUPPRESS
    return ours.format_help() + theirs.format_help()


def help_text(description: str | None) -> str:
    """Help on our own flags, without importing transformers and its 120 arguments."""
    parser = parser_of(
        "mdlm-finetune",
        description,
        usage=USAGE,
        epilog="Fields of the objective (alpha, beta, ...) and transformers' TrainingArguments are keys, too:\n"
        "mdlm-finetune --objective NAME --help-all lists them all.",
    )
    packaged = ", ".join(sorted(recipes_in(RECIPES)))
    parser.add_argument("--config", metavar="RECIPE", help=f"a YAML file of these keys, or one of {packaged}")
    for each in fields(Recipe):
        default = each.default if each.default_factory is MISSING else " ".join(each.default_factory())
        shown = "" if default in (None, False, MISSING) else f" (default: {default})"
        parser.add_argument(f"--{each.name}", metavar="", help=each.metadata["help"] + shown)
    return parser.format_help()


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """The settings of a file as flags, so that the same parser reads both."""
    flags: list[str] = []
    for name, value in settings.items():
        if value is not None:
            words = value if isinstance(value, list) else [value]
            flags += [f"--{name}", *(word if isinstance(word, str) else json.dumps(word) for word in words)]
    return flags
