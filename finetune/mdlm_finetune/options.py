"""What a recipe may set."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import yaml

from mdlm_finetune.loss import Divergence, Weighting
from mdlm_lm_eval.options import OptionError


@dataclass(frozen=True)
class FinetuneOptions:
    """A recipe; its keys are documented in finetune/README.md."""

    output: str
    pretrained: str | None = None
    data: str = "generated"
    n_examples: int = 5000
    max_length: int = 1024
    alpha: float = 0.1
    beta: float = 1.0
    divergence: Divergence = "tv"
    weighting: Weighting = "1/p"
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
    lora_targets: str = "all-linear"
    dtype: str = "bfloat16"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("divergence", get_args(Divergence)), ("weighting", get_args(Weighting))):
            if vars(self)[name] not in allowed:
                raise OptionError(f"{name}={vars(self)[name]!r} is not allowed; allowed are {', '.join(allowed)}")
        for name in ("n_examples", "max_length", "batch_size", "accumulation", "steps", "save_steps", "lora_rank"):
            if vars(self)[name] < 1:
                raise OptionError(f"{name}={vars(self)[name]} is not allowed; allowed are whole numbers from 1")
        if not 0.0 < self.p_low <= self.p_high <= 1.0:
            raise OptionError(f"p_low={self.p_low}, p_high={self.p_high}: must be 0 < p_low <= p_high <= 1")
        if self.alpha == 0.0 and (self.beta == 0.0 or self.divergence == "none"):
            raise OptionError(f"alpha={self.alpha}, beta={self.beta}: nothing is left of the loss")


def read_recipe(path: Path, changes: Sequence[str] = ()) -> FinetuneOptions:
    """The recipe at `path` with `changes`, each key=value. Raises OptionError for unknown keys and bad values."""
    settings: dict[str, Any] = dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise OptionError(f"--set {change}: must be key=value")
        settings[key] = yaml.safe_load(value)
    return _parse(settings)


def _parse(settings: Mapping[str, Any]) -> FinetuneOptions:
    known = {field.name: field for field in fields(FinetuneOptions)}
    values = dict(settings)
    for name, value in settings.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            raise OptionError(f"unknown key {name}; {'did you mean ' + nearest[0] if nearest else 'see the README'}")
        kind = known[name].type
        if kind in (int, float):
            try:
                # YAML 1.1 reads 1e-5, without a dot, as text.
                values[name] = float(value) if kind is float else int(str(value))
            except (TypeError, ValueError) as error:
                raise OptionError(f"{name}={value!r} is not allowed; allowed is a number") from error
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise OptionError(f"the recipe lacks {', '.join(missing)}")
    return FinetuneOptions(**values)
