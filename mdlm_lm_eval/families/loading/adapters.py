"""PEFT adapters, also those trained on the module names of a family's remote code."""

import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import torch
from peft import LoraConfig, PeftConfig, PeftModel, PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME, load_peft_weights, set_peft_model_state_dict
from peft.utils.other import get_pattern_key
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from torch import Tensor
from transformers import PreTrainedModel

from mdlm_lm_eval.families.loading.errors import refusing
from mdlm_lm_eval.families.loading.hub import check_source
from mdlm_lm_eval.families.loading.settings import read_settings
from mdlm_lm_eval.families.registry import family_of
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.values import shown

WEIGHT_FILES = (SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME)
PREFIX = "base_model.model."
WHOLE_MODULE_COPY = re.compile(r"\.(modules_to_save|original_module)(\.default)?(?=\.)")
LORA_PARAMETER = re.compile(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.|$)")
# PEFT's own annotations, beside those that are narrower than what it takes, or wider.
_LORA_TYPES = get_type_hints(LoraConfig) | {
    "lora_alpha": float | int,
    "lora_dropout": float | int,
    "init_lora_weights": bool | str,
    "rank_pattern": dict[str, int] | None,
    "alpha_pattern": dict[str, float | int] | None,
    "layer_replication": list[list[int]] | None,
}


def load_adapter(model: PreTrainedModel, peft: str, *, revision: str | None = "main") -> PeftModel:
    """`model` with the adapter `peft` (hub id or folder). The embedding keeps all its rows.

    Raises OptionError where the adapter cannot be read or was made for another model.
    """
    if Path(peft).is_dir() and not any((Path(peft) / name).is_file() for name in WEIGHT_FILES):
        raise OptionError(f"peft={peft}: the folder holds no {WEIGHT_FILES[0]}")
    config = load_adapter_config(peft, revision=revision)
    with refusing(f"peft={peft}: the adapter's weights cannot be read"):
        weights = load_peft_weights(peft, device="cpu", revision=revision or "main")
        if damaged := [name for name, weight in weights.items() if not torch.isfinite(weight).all()]:
            raise ValueError(f"{len(damaged)} of them are not finite (NaN or infinity), the first is {damaged[0]}")
    parts = [
        (name.removeprefix(PREFIX), *part) for name in weights for part in _native_parts(name, weights[name], model)
    ]
    if any(name != new_name for name, new_name, _ in parts):
        config, weights = _with_native_names(peft, config, parts)
    config.inference_mode = True
    with refusing(f"peft={peft}: the adapter does not fit this model"):
        convert_peft_config_for_transformers(config, model, None)
        _check_size(config, weights, model)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft's call
            adapted = PeftModel(model, config)
        # lm-eval ties the weights of every model anew, which an adapter around a tied output head forbids.
        vars(adapted)["tie_weights"] = lambda *_, **__: None
        result = set_peft_model_state_dict(adapted, weights)
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING[config.peft_type]
    missing = [name for name in result.missing_keys if prefix in name]
    # With the embeddings, PEFT saves a module that is trained whole a second time.
    unexpected = [name for name in result.unexpected_keys if not _is_copy(name, weights)]
    misfits = [*unexpected, *missing]
    if misfits:
        raise OptionError(
            f"peft={peft}: the adapter does not fit this model: {len(unexpected)} of its weights have no "
            f"place and {len(missing)} places have no weight, the first is {misfits[0]}"
        )
    return adapted.eval()


def load_adapter_config(peft: str, *, revision: str | None = "main") -> PeftConfig:
    """What the adapter says of itself, without its weights. Raises OptionError where it cannot be read."""
    check_source("peft", peft, CONFIG_NAME, revision=revision or "main")
    with refusing(f"peft={peft}: the adapter cannot be read"):
        settings = read_settings(peft, CONFIG_NAME, _LORA_TYPES, revision=revision or "main")
        if settings is not None and settings.get("peft_type") not in list(PEFT_TYPE_TO_CONFIG_MAPPING):
            raise ValueError(f"peft_type={shown(settings.get('peft_type'))} in {CONFIG_NAME} is not known to PEFT")
        config = PeftConfig.from_pretrained(peft, revision=revision or "main")
        if config.is_prompt_learning:
            kind = PeftType(config.peft_type).value
            raise ValueError(f"{kind} adds tokens of its own; it must be one that adapts weights, as LORA")
        if isinstance(config, LoraConfig) and not all(math.isfinite(scale) and scale for scale in _scales(config)):
            raise ValueError("lora_alpha must be a finite number, and not 0, which is the model without the adapter")
    return config


def _scales(config: LoraConfig) -> list[float]:
    return [config.lora_alpha, *(config.alpha_pattern or {}).values()]


def _check_size(config: PeftConfig, weights: dict[str, Tensor], model: PreTrainedModel) -> None:
    """Raises ValueError for what PEFT would build whatever its size, or overlook."""
    for name in config.modules_to_save or ():
        if not any(module.endswith(name) for module, _ in model.named_modules()):
            raise ValueError(f"modules_to_save names {shown(name)}, and no module is named so")
    if isinstance(config, LoraConfig):
        widest = max((max(weight.shape, default=0) for weight in weights.values()), default=0)
        for rank in (config.r, *(config.rank_pattern or {}).values()):
            if rank > widest:
                raise ValueError(f"r={shown(rank)} is larger than {widest}, the largest width of its weights")


def _is_copy(name: str, weights: dict[str, Tensor]) -> bool:
    plain, n_replaced = WHOLE_MODULE_COPY.subn("", name)
    return n_replaced > 0 and plain in weights


def _with_native_names(
    peft: str, config: PeftConfig, parts: list[tuple[str, str, Tensor]]
) -> tuple[LoraConfig, dict[str, Tensor]]:
    """Adapter of a family's remote code -> module names of transformers' class.

    Each module is named in full, taken from the weights: LLaDA's `ff_out` alone would say neither whether a block's
    down projection or the output head is meant.
    """
    if not isinstance(config, LoraConfig):
        raise OptionError(
            f"peft={peft}: an adapter on the modules of remote code must be of type LORA, not {config.peft_type}"
        )
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, Any] = {}
    targets: set[str] = set()
    saved: set[str] = set()
    renamed: dict[str, Tensor] = {}
    old_ranks, old_alphas = config.rank_pattern or {}, config.alpha_pattern or {}
    for name, new_name, tensor in parts:
        renamed[PREFIX + new_name] = tensor
        if ".base_layer." in name:
            continue  # a copy of the checkpoint's own weight, kept next to an adapted output head
        if not LORA_PARAMETER.search(name):
            saved.add(new_name.rpartition(".")[0])
            continue
        old_module = LORA_PARAMETER.split(name)[0]
        module = LORA_PARAMETER.split(new_name)[0]
        targets.add(module)
        rank_key, alpha_key = get_pattern_key(old_ranks, old_module), get_pattern_key(old_alphas, old_module)
        if rank_key in old_ranks:
            rank_pattern[module] = old_ranks[rank_key]
        if alpha_key in old_alphas:
            alpha_pattern[module] = old_alphas[alpha_key]
    config.target_modules = targets
    config.exclude_modules = config.layers_to_transform = config.layers_pattern = None
    config.rank_pattern, config.alpha_pattern = rank_pattern, alpha_pattern
    config.modules_to_save = sorted(saved - targets) or None
    return config, renamed


def _native_parts(name: str, tensor: Tensor, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """An adapter's tensor under its native name, split by rows where its module is; all parts have the same input."""
    family = family_of(model.config)
    name = name.removeprefix(PREFIX)
    for pattern, replacement in family.weight_names.items():
        name, n_replaced = re.subn(pattern, replacement, name)
        if n_replaced:
            break
    for converter in family.weight_conversions():
        (source,) = converter.source_patterns
        if source in name:
            names = [name.replace(source, target) for target in converter.target_patterns]
            rows = [model.get_submodule(LORA_PARAMETER.split(part)[0]).out_features for part in names]
            parts = [tensor.clone() for _ in names] if ".lora_A." in name else tensor.split(rows)
            yield from zip(names, parts, strict=True)
            return
    yield name, tensor
