"""What a recipe may set."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from transformers import TrainingArguments

from mdlm_finetune.collator import MaskedPart
from mdlm_finetune.loss import Divergence, Weighting
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line

_COUNTS = (
    "n_examples",
    "max_length",
    "batch_size",
    "accumulation",
    "steps",
    "save_steps",
    "lora_rank",
    "lora_alpha",
    "masks_start",
)


@dataclass(frozen=True)
class FinetuneOptions:
    """A recipe; its keys are documented in finetune/README.md. The defaults are the paper's (appendix B)."""

    output: str
    pretrained: str | None = None
    data: str = "generated"
    data_config: str | None = None
    split: str = "train"
    chat_template: bool = False
    n_examples: int = 5000
    max_length: int = 1024
    alpha: float = 0.1
    beta: float = 1.0
    divergence: Divergence = "tv"
    weighting: Weighting = "1/p"
    masked_part: MaskedPart = "answer"
    p_low: float = 0.2
    p_high: float = 0.8
    masks_start: int = 1
    masks_end: int = 600
    curriculum_passes: int = 5000
    learning_rate: float = 1e-5
    batch_size: int = 3
    accumulation: int = 43
    steps: int = 930
    save_steps: int = 100
    lora_rank: int = 64
    lora_alpha: int = 128
    lora_targets: str | list[str] = "all-linear"
    dtype: str = "bfloat16"
    attn_implementation: str | None = None
    seed: int = 0
    evaluation_limit: int = 50
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.output.strip() or Path(self.output).name in ("", ".."):
            raise OptionError(f"output={self.output!r} is not allowed; allowed is the name of a folder")
        # Other folders' names begin with it, so that no slash may stand at its end.
        object.__setattr__(self, "output", str(Path(self.output)))
        for name, allowed in (
            ("divergence", get_args(Divergence)),
            ("weighting", get_args(Weighting)),
            ("masked_part", get_args(MaskedPart)),
            ("dtype", ("float32", "bfloat16", "float16")),
        ):
            if vars(self)[name] not in allowed:
                raise OptionError(f"{name}={vars(self)[name]!r} is not allowed; allowed are {', '.join(allowed)}")
        for name in _COUNTS:
            if vars(self)[name] < 1:
                raise OptionError(f"{name}={vars(self)[name]} is not allowed; allowed are whole numbers from 1")
        for name in ("alpha", "beta", "curriculum_passes", "evaluation_limit", "seed"):
            if not 0 <= vars(self)[name] < float("inf"):
                raise OptionError(f"{name}={vars(self)[name]} is not allowed; allowed are numbers from 0")
        if self.seed >= 2**32:
            raise OptionError(f"seed={self.seed} is not allowed; allowed are whole numbers below 2^32")
        if not 0.0 < self.learning_rate < float("inf"):
            raise OptionError(f"learning_rate={self.learning_rate} is not allowed; allowed are numbers above 0")
        if not 0.0 < self.p_low <= self.p_high <= 1.0:
            raise OptionError(f"p_low={self.p_low}, p_high={self.p_high}: must be 0 < p_low <= p_high <= 1")
        if self.masks_end < self.masks_start:
            raise OptionError(
                f"masks_start={self.masks_start}, masks_end={self.masks_end}: must be masks_start <= masks_end"
            )
        if self.alpha == 0.0 and (self.beta == 0.0 or self.divergence == "none"):
            raise OptionError(
                f"alpha={self.alpha}, beta={self.beta}, divergence={self.divergence}: nothing is left of the loss"
            )


def read_recipe(path: Path, changes: Sequence[str] = ()) -> FinetuneOptions:
    """The recipe at `path` with `changes`, each key=value. Raises OptionError for unknown keys and bad values."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise OptionError(f"--config {path}: cannot be read: {one_line(error)}") from error
    if not isinstance(settings, dict):
        raise OptionError(f"--config {path}: must hold keys and values, a line each")
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise OptionError(f"--set {change}: must be key=value")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise OptionError(f"--set {change}: the value is no YAML; put a text with such signs in quotes") from error
        within, dot, name = key.partition(".")
        if dot and within == "trainer":
            settings["trainer"] = {**(settings.get("trainer") or {}), name: parsed}
        else:
            settings[key] = parsed
    return _parse(settings)


def _parse(settings: Mapping[str, Any]) -> FinetuneOptions:
    known = {field.name: field for field in fields(FinetuneOptions)}
    values = dict(settings)
    for name, value in settings.items():
        if name not in known:
            nearest = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"allowed are {', '.join(known)}"
            raise OptionError(f"unknown key {name}={value}; {hint}")
        kind = known[name].type
        if kind in (int, float):
            try:
                # YAML 1.1 reads 1e-5, without a dot, as text.
                values[name] = float(value) if kind is float else int(str(value))
            except (TypeError, ValueError) as error:
                what = "a number" if kind is float else "a whole number"
                raise OptionError(f"{name}={value!r} is not allowed; allowed is {what}") from error
        elif kind is bool and not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} is not allowed; allowed is true or false")
        elif name == "trainer":
            values[name] = value or {}
            if not isinstance(values[name], dict):
                raise OptionError(f"{name}={value!r} is not allowed; allowed is a mapping of TrainingArguments")
        elif name == "lora_targets":
            if not value or not all(isinstance(part, str) for part in (value if isinstance(value, list) else [value])):
                raise OptionError(f"{name}={value!r} is not allowed; allowed is a text or a list of texts")
        elif kind is str and value is None:
            raise OptionError(f"{name} is not set; it needs a value")
        elif kind in (str, str | None) and value is not None:
            values[name] = str(value)
    missing = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in missing if name not in values]
    if missing:
        raise OptionError(f"the recipe lacks {', '.join(missing)}")
    return FinetuneOptions(**values)


def training_arguments(options: FinetuneOptions, checkpoints: Path) -> TrainingArguments:
    """transformers' arguments: the recipe's keys, and whatever else it sets under `trainer`.

    Raises OptionError for a name or a value that transformers does not know, and for one that a recipe's key rules.
    """
    ruled: dict[str, Any] = {
        "output_dir": str(checkpoints),
        "max_steps": options.steps,
        "save_steps": options.save_steps,
        "per_device_train_batch_size": options.batch_size,
        "gradient_accumulation_steps": options.accumulation,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
        "remove_unused_columns": False,
    }
    defaults: dict[str, Any] = {
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_steps": 10,
        "save_total_limit": 2,
        "report_to": [],
        "ddp_find_unused_parameters": False,
        "use_cpu": not torch.accelerator.is_available(),  # else transformers refuses bf16 on machines without a GPU
    }
    known = {field.name for field in fields(TrainingArguments)}
    for name, value in options.trainer.items():
        if name in ruled:
            raise OptionError(f"trainer.{name}={value} is not allowed; the recipe's own keys set it")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise OptionError(f"unknown key trainer.{name}={value}: no argument of transformers' Trainer{hint}")
    try:
        arguments = TrainingArguments(**defaults | options.trainer | ruled)
    except (TypeError, ValueError, ImportError) as error:
        raise OptionError(f"trainer={options.trainer}: {one_line(error)}") from error
    if arguments.n_gpu > 1:
        # The Trainer would copy the model in threads, whose copies lack what the Denoiser registers.
        raise OptionError(
            f"one process with {arguments.n_gpu} GPUs is not allowed; start one a GPU, torchrun --nproc-per-node "
            f"{arguments.n_gpu} -m mdlm_finetune, or name one GPU in CUDA_VISIBLE_DEVICES"
        )
    return arguments
