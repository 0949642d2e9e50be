"""PEFT adapters, including those that were trained on the modules of a family's remote code."""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
from peft.utils import load_peft_weights, set_peft_model_state_dict
from peft.utils.other import ModulesToSaveWrapper, get_pattern_key
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from torch import Tensor
from transformers import PreTrainedModel

from mdlm_lm_eval.checkpoints.weights import refused_pickles
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.names import model_name, other_base

logger = logging.getLogger(__name__)
PREFIX = "base_model.model."
WHOLE_MODULE_COPY = re.compile(r"\.(modules_to_save|original_module)(\.default)?(?=\.)")
LORA_PARAMETER = re.compile(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.|$)")


def adapter_config(peft: str, *, revision: str = "main") -> PeftConfig:
    """The config of an adapter (hub id or folder). Raises OptionError if there is none, and for prompt learning."""
    source = os.path.expanduser(peft)
    if os.path.isdir(source) and not os.path.exists(os.path.join(source, "adapter_config.json")):
        raise OptionError(f"peft={peft}: the folder holds no adapter_config.json")  # PEFT would ask the hub for it
    try:
        config = PeftConfig.from_pretrained(source, revision=revision)
    except ValueError as error:
        raise OptionError(f"peft={peft}: {error}") from error
    if config.is_prompt_learning:
        raise OptionError(f"peft={peft}: prompt learning adds tokens to a text; use an adapter of weights, as LORA")
    return config


def load_adapter(model: PreTrainedModel, peft: str, *, revision: str = "main") -> PeftModel:
    """`model` with the adapter `peft` (hub id or folder), in evaluation mode. The embedding keeps all its rows.

    Raises OptionError if the adapter's weights do not fit, and as `adapter_config` does.
    """
    config = adapter_config(peft, revision=revision)
    if base := other_base(config.base_model_name_or_path, model.config.name_or_path):
        logger.warning("peft=%s was trained on %s, not on %s", peft, base, model_name(model.config.name_or_path))
    with refused_pickles(f"peft={peft}"):
        weights = load_peft_weights(os.path.expanduser(peft), device="cpu", revision=revision)
    parts = [
        (name.removeprefix(PREFIX), *part) for name in weights for part in _native_parts(name, weights[name], model)
    ]
    if any(name != new_name for name, new_name, _ in parts):
        config, weights = _with_native_names(config, parts)
    config.inference_mode = True
    convert_peft_config_for_transformers(config, model, None)
    is_trained = getattr(config, "bias", "none") != "none"
    biases = {name: one.clone() for name, one in model.named_parameters() if is_trained and name.endswith("bias")}
    with warnings.catch_warnings():
        # PEFT calls this itself, so users cannot avoid the warning.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        adapted = PeftModel(model, config)
    # lm-eval ties the weights of every model again, which fails with an adapter around a tied output head.
    vars(adapted)["tie_weights"] = lambda *_, **__: None
    vars(adapted)["own_biases"] = biases
    result = set_peft_model_state_dict(adapted, weights)
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING[config.peft_type]
    missing = [name for name in result.missing_keys if prefix in name]
    # PEFT saves embeddings that are trained whole twice.
    plain = {name: WHOLE_MODULE_COPY.sub("", name) for name in result.unexpected_keys}
    unexpected = [name for name in plain if plain[name] == name or plain[name] not in weights]
    misfits = [*unexpected, *missing]
    if misfits:
        raise OptionError(
            f"peft={peft}: the adapter does not fit this model: {len(unexpected)} of its weights have no "
            f"place and {len(missing)} places have no weight, the first is {misfits[0]}"
        )
    return adapted.eval()


def without_adapter(adapted: PeftModel) -> PreTrainedModel:
    """The model as it was before `load_adapter`. PEFT's `unload` leaves modules and biases that were trained whole."""
    wrapped = adapted.get_base_model().named_modules()
    replaced = {name: each.original_module for name, each in wrapped if isinstance(each, ModulesToSaveWrapper)}
    model = adapted.unload()
    for name, module in replaced.items():
        model.set_submodule(name, module)
    with torch.no_grad():
        for name, bias in vars(adapted)["own_biases"].items():
            model.get_parameter(name).copy_(bias)
    return model


def _with_native_names(
    config: PeftConfig, parts: list[tuple[str, str, Tensor]]
) -> tuple[PeftConfig, dict[str, Tensor]]:
    """Config and weights of a LoRA adapter of remote code, with the module names of transformers' class.

    The config gets the full name of each module in the weights, because a short name can be ambiguous: LLaDA's `ff_out`
    is a block's down projection and also the output head.
    """
    patterns: dict[str, dict[str, Any]] = {"rank_pattern": {}, "alpha_pattern": {}}
    targets: set[str] = set()
    saved: set[str] = set()
    renamed: dict[str, Tensor] = {}
    for name, new_name, tensor in parts:
        renamed[PREFIX + new_name] = tensor
        if ".base_layer." in name:
            continue  # a copy of the checkpoint's own weight beside an adapted output head
        if not LORA_PARAMETER.search(name):
            saved.add(new_name.rpartition(".")[0])
            continue
        old_module, module = (LORA_PARAMETER.split(each)[0] for each in (name, new_name))
        targets.add(module)
        for option, pattern in patterns.items():
            old = getattr(config, option) or {}
            if (key := get_pattern_key(old, old_module)) in old:
                pattern[module] = old[key]
    config.target_modules = targets
    config.exclude_modules = config.layers_to_transform = config.layers_pattern = None
    vars(config).update(patterns)
    config.modules_to_save = sorted(saved - targets) or None
    return config, renamed


def _native_parts(name: str, tensor: Tensor, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """An adapter's tensor under its native name. It is split by rows if its module is split in transformers' class."""
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
