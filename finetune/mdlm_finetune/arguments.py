"""The command's arguments: ours, the objective's and transformers' own, read by its HfArgumentParser."""

import hashlib
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

import torch
from transformers import HfArgumentParser, TrainingArguments

from mdlm_finetune.objective import Objective
from mdlm_finetune.objectives import objective_class
from mdlm_finetune.recipe import (
    GENERATED,
    Actions,
    Recipe,
    as_flags,
    read_recipe,
    take_flag,
    unknown_key,
)
from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.options import LARGEST_NUMPY_SEED, OptionError
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.values import LARGEST, must_be, number_of, shown, spells_number, whole_of

# Name -> least and most. The most are sizes that no run reaches and no machine holds.
_BOUNDS = {
    "max_train_samples": (1, 10**7),
    "max_length": (2, 10**6),
    "max_steps": (1, 10**7),
    "per_device_train_batch_size": (1, 10**5),
    "gradient_accumulation_steps": (1, 10**5),
    "save_steps": (1, 10**7),
    "save_total_limit": (1, 10**7),
    "logging_steps": (1, 10**7),
    "lora_r": (1, 10**5),
    "lora_alpha": (1, 10**5),
    "lora_dropout": (0, 0.99),
    "seed": (0, LARGEST_NUMPY_SEED),
    "data_seed": (0, LARGEST_NUMPY_SEED),
    "evaluation_limit": (0, 10**7),
    "weight_decay": (0, 100),
    "adam_beta1": (0, 0.9999999),
    "adam_beta2": (0, 0.9999999),
    "max_grad_norm": (0, 10**9),
    "dataloader_num_workers": (0, 1000),
    "warmup_steps": (0, 10**7),
}

# Arguments of the Trainer that this training has no use for, and why.
_LEFT_OUT = {
    "num_train_epochs": "max_steps says how long the training is",
    "resume_from_checkpoint": "--resume goes on from the last one",
    "save_only_model": "--resume goes on from checkpoints that hold the optimiser's state, too",
    "label_smoothing_factor": "the objective has a loss of its own",
    # The Trainer would upload its checkpoints with a pickle of all arguments, hub_token among them, and not our card.
    "push_to_hub": "hf upload REPOSITORY OUTPUT_DIR puts the adapter there with its card",
}

_LONGEST_NAME = 200  # bytes; file systems take 255, and what lies beside the folder has longer names


@dataclass
class FinetuneArguments(Recipe, TrainingArguments):
    """transformers' TrainingArguments with what a recipe names beside them. Raises OptionError for bad values."""

    def __post_init__(self) -> None:
        output = (self.output_dir or "").strip()
        if Path(output).name in ("", "..") or len(Path(output).name.encode()) > _LONGEST_NAME:
            raise must_be("output_dir", f"the name of a folder, of at most {_LONGEST_NAME} bytes", output)
        for name, path in (("output_dir", output), ("model_name_or_path", self.model_name_or_path)):
            if "," in path or path.lower() == "none":  # what commands read as two values, or as no adapter
                raise must_be(name, "without a comma, and not none", path)
        # Other folders' names begin with it, so that no slash may stand at its end.
        try:
            self.output_dir = str(Path(output).expanduser())
        except RuntimeError as error:
            raise must_be("output_dir", "in the folder of a user of this machine", output) from error
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise must_be(name, f"a number from {least} up to {most}", value)
        if not 0.0 < self.learning_rate < float("inf"):
            raise must_be("learning_rate", "a number above 0", self.learning_rate)
        dtypes = get_args(get_type_hints(Recipe)["dtype"])
        if self.dtype not in dtypes:
            raise must_be("dtype", f"one of {', '.join(dtypes)}", self.dtype)
        for name, instead in _LEFT_OUT.items():
            if getattr(self, name) != getattr(TrainingArguments, name):
                raise OptionError(f"{name} must be left out; {instead}")
        if (self.train_file is None) == (self.dataset_name is None):
            raise OptionError("train_file or dataset_name must be given, and not both")
        data = str(self.dataset_name if self.train_file is None else self.train_file)
        if not data or "://" in data:
            raise must_be("train_file or dataset_name", "a file on this machine, or a data set's name on the hub", data)
        if self.is_generated and self.apply_chat_template:
            raise OptionError(f"apply_chat_template must be left out for dataset_name={self.dataset_name}")
        for name in (each.name for each in fields(self) if each.name.endswith("_kwargs")):
            value = getattr(self, name)
            if isinstance(value, str) and not value.startswith("{"):  # the Trainer would go on without them
                raise must_be(name, "names with a value each, in JSON", value)
        # Else transformers refuses bf16 on machines without a GPU.
        self.use_cpu: bool = self.use_cpu or not torch.accelerator.is_available()
        if self.fp16 and self.use_cpu:
            raise OptionError("fp16 must be left out without a GPU; bf16 works there")
        self.ddp_find_unused_parameters: bool = bool(self.ddp_find_unused_parameters)
        try:
            super().__post_init__()
        except (TypeError, ValueError, ImportError, OSError, NotImplementedError) as error:
            raise OptionError(one_line(error)) from error
        if self.n_gpu > 1:
            # The Trainer would copy the model in threads, whose copies lack what the Denoiser registers.
            raise OptionError(
                f"one process with {self.n_gpu} GPUs is not allowed; start one a GPU, torchrun --nproc-per-node "
                f"{self.n_gpu} -m mdlm_finetune, or name one GPU in CUDA_VISIBLE_DEVICES"
            )

    @property
    def is_built_in(self) -> bool:
        return self.model_name_or_path == BUILT_IN

    @property
    def is_generated(self) -> bool:
        return self.dataset_name == GENERATED

    @property
    def checkpoint(self) -> str:
        """The base model's hub id or folder."""
        return str(default_model_path()) if self.is_built_in else self.model_name_or_path

    @property
    def folder(self) -> Path:
        """Where the adapter goes."""
        return Path(str(self.output_dir))

    @property
    def usable_samples(self) -> int:
        """Examples that the run can see at most."""
        a_step = self.world_size * self.per_device_train_batch_size * self.gradient_accumulation_steps
        return min(self.max_train_samples or a_step * self.max_steps, a_step * self.max_steps)

    def changed(self) -> dict[str, Any]:
        """What differs from the defaults, as values of a YAML file, without secrets."""
        default = type(self)(output_dir=self.output_dir, train_file=self.train_file, dataset_name=self.dataset_name)
        before, now = default.to_dict(), self.to_dict()
        data = ("train_file", "dataset_name")
        return {key: now[key] for key in now if now[key] != before[key] or (key in data and now[key] is not None)}

    def circumstances(self) -> dict[str, Any]:
        """What decides the weights beside the keys: how many processes share a batch, and what the data file holds."""
        found: dict[str, Any] = {"processes": self.world_size}
        # What is no file, or cannot be read, is said where its rows are read.
        if self.train_file is not None and Path(self.train_file).is_file():
            with suppress(OSError), open(self.train_file, "rb") as file:
                found["train_file_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        return found


def _number(read: Callable[[object], float | None], what: str, text: str) -> float:
    value = read(text)
    if value is None and spells_number(text) and abs(float(text)) >= LARGEST:
        what = f"{what} below {LARGEST}"
    if value is None:
        raise ArgumentTypeError(f"must be {what}, not {shown(text)}")
    return value


class _Parser(HfArgumentParser):
    """transformers' parser with strict numbers, whole names, and errors of one sentence."""

    def __init__(self, *dataclasses: type) -> None:
        super().__init__(dataclasses, prog="mdlm-finetune", allow_abbrev=False, add_help=False)
        self.register("type", int, partial(_number, whole_of, "a whole number"))
        self.register("type", float, partial(_number, number_of, "a number"))

    def error(self, message: str) -> NoReturn:
        raise OptionError(re.sub(r"^argument --([\w-]+)(/\S+)?:", r"\1", message))


def read_arguments(words: Sequence[str]) -> tuple[FinetuneArguments, Objective, Actions]:
    """The recipe that `words` name by --config, with their other flags on top.

    Raises OptionError for unknown keys and bad values.
    """
    config, words = take_flag(words, "config")
    settings = {} if config is None else read_recipe(config)
    for name, other in (("train_file", "dataset_name"), ("dataset_name", "train_file")):
        if take_flag(words, name)[0] is not None:
            settings.pop(other, None)  # one of them replaces the recipe's
    named = take_flag(words, "objective")[0]
    objective = objective_class(str(settings.get("objective", Recipe.objective)) if named is None else named)
    known = {each.name for group in (FinetuneArguments, objective) for each in fields(group) if each.init}
    parser = _Parser(FinetuneArguments, objective, Actions)
    words = [*as_flags(settings, known), *words]
    if unknown := parser.parse_known_args(words)[1]:
        if not unknown[0].startswith("--"):
            raise OptionError(f"{unknown[0]} is not understood; flags are --KEY VALUE")
        name, has_value, value = unknown[0].removeprefix("--").partition("=")
        if not has_value and len(unknown) > 1:
            value = unknown[1]
        raise unknown_key(name, value, known | {each.name for each in fields(Actions)})
    arguments, chosen, actions = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    return arguments, chosen, actions


def long_help(words: Sequence[str]) -> str:
    """Every flag: ours, those of the objective in `words`, and TrainingArguments'."""
    objective = objective_class(take_flag(words, "objective")[0] or Recipe.objective)
    return _Parser(FinetuneArguments, objective, Actions).format_help()
