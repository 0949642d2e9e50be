"""Weights into transformers' own classes, streamed and renamed by transformers."""

import json
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import (
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    cached_file,
)

from mdlm_lm_eval.default_model import model_path
from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.loading.errors import reason, refusing, remote_code_sentence
from mdlm_lm_eval.families.loading.settings import read_settings
from mdlm_lm_eval.families.registry import family_of
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import UnusableFile, read_json

NAMES_SHOWN = 5
# As safetensors calls them.
_NO_FLOATS = ("BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "C64")


def load_model(
    pretrained: str,
    config: PretrainedConfig,
    *,
    revision: str | None = "main",
    subfolder: str | None = "",
    dtype: str | torch.dtype | None = "auto",
    trust_remote_code: bool | None = False,
    **from_pretrained_kwargs: Any,
) -> PreTrainedModel:
    """The model of `config` with the checkpoint's weights, in evaluation mode.

    `from_pretrained_kwargs` (device_map, quantization_config, attn_implementation, tp_plan, ...) go to transformers.
    Raises OptionError for weights that are missing, unexpected, of another shape, or unreadable.
    """
    pretrained, family = model_path(pretrained), family_of(config)
    if family.weight_names:
        from_pretrained_kwargs["key_mapping"] = dict(family.weight_names)
    if from_pretrained_kwargs.get("tp_plan") is not None:
        family.refuse("tp_plan", from_pretrained_kwargs["tp_plan"])
    _check_shards(pretrained, subfolder or "")
    with refusing(f"pretrained={pretrained}"):  # transformers would go on without it, and so without its ends of text
        read_settings(pretrained, GENERATION_CONFIG_NAME, {}, revision=revision or "main", subfolder=subfolder or "")
    if getattr(config, "quantization_config", None) is None:
        _check_dtypes(pretrained, subfolder or "")
    try:
        model, info = _loader(family, config).from_pretrained(
            pretrained,
            config=config,
            revision=revision or "main",
            subfolder=subfolder or "",
            dtype=dtype or "auto",
            trust_remote_code=bool(trust_remote_code) and family.remote_code,
            ignore_mismatched_sizes=True,  # reported below, by name, with the missing ones
            output_loading_info=True,
            **from_pretrained_kwargs,
        )
    except (OSError, SafetensorError, UnpicklingError) as error:
        raise OptionError(f"pretrained={pretrained}: its weights cannot be read: {reason(error)}") from error
    except Exception as error:
        if family.remote_code:
            raise OptionError(remote_code_sentence(pretrained, error)) from error
        if isinstance(error, RuntimeError) and "conversion of the weights" in str(error):
            # transformers fuses experts while loading and stops, without their names, where some are missing.
            found = _weight_names(pretrained, revision or "main", subfolder or "")
            _refuse(pretrained, "missing", family.expert_weight_names(config) - found)
            raise OptionError(f"pretrained={pretrained}: its expert weights differ in shape") from error
        # What is not installed, and values in config.json that transformers does not know.
        raise OptionError(f"pretrained={pretrained}: it cannot be loaded as asked for: {reason(error)}") from error
    unexpected = {
        name for name in info["unexpected_keys"] if not any(unused in name for unused in family.unused_weights)
    }
    _refuse(pretrained, "missing", set(info["missing_keys"]))
    _refuse(pretrained, "unexpected", unexpected)
    _refuse(pretrained, "of another shape than its config says", {name for name, *_ in info["mismatched_keys"]})
    conversions = family.weight_conversions()
    if conversions:
        model.__class__ = type(model).__base__
    if conversions or family.weight_names:
        # save_pretrained would undo the renaming, and put the published names next to a config of transformers' class.
        model._weight_conversions = None
    if not family.remote_code and family.generate is None:
        # The config's is_causal only rules the masks; flash attention reads the modules' own.
        for module in model.modules():
            if "is_causal" in vars(module):
                module.is_causal = False
    return model.eval()


def load_skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """The model of `config` on the meta device, without weights: its modules' names and shapes."""
    with torch.device("meta"):
        return family_of(config).model_class(config).from_config(config)


def reserved_positions(config: PretrainedConfig) -> int:
    """How many of the positions that the config names hold no token."""
    reserved = family_of(config).reserved_positions
    return 0 if reserved is None else reserved(load_skeleton(config))


def _loader(family: Family, config: PretrainedConfig) -> Any:
    """The class whose `from_pretrained` reads the family's weights.

    transformers finds conversions by the name of a model's class. The family's are registered for a subclass, and so
    rule neither other checkpoints of transformers' class nor what `save_pretrained` writes.
    """
    conversions = family.weight_conversions()
    if not conversions:
        return family.model_class(config)
    native = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    name = f"{native.__name__}_{family.name}"
    register_checkpoint_conversion_mapping(name, conversions, overwrite=True)
    return type(name, (native,), {})


def _check_shards(pretrained: str, subfolder: str) -> None:
    """Raises OptionError where a folder's index of weights names files that do not lie in that folder."""
    folder = Path(pretrained) / subfolder
    if (folder / SAFE_WEIGHTS_NAME).exists():
        return  # the index is not read
    for path in filter(Path.is_file, (folder / SAFE_WEIGHTS_INDEX_NAME, folder / WEIGHTS_INDEX_NAME)):
        try:
            shards = set(read_json(path)["weight_map"].values())
        except (UnusableFile, LookupError, TypeError, AttributeError) as error:
            raise OptionError(
                f"pretrained={pretrained}: {path.name} is no index of weights: {reason(error)}"
            ) from error
        for shard in shards:
            if Path(str(shard)).name != shard or not (folder / shard).is_file():
                raise OptionError(
                    f"pretrained={pretrained}: {path.name} names {shard}, which is no file in that folder"
                )


def _check_dtypes(pretrained: str, subfolder: str) -> None:
    """Raises OptionError where weights in a folder are whole numbers, which transformers would take as they are."""
    for path in filter(Path.is_file, (Path(pretrained) / subfolder).glob("*.safetensors")):
        with suppress(SafetensorError), safe_open(path, framework="pt") as weights:  # a damaged file is told when read
            for name in weights.keys():  # noqa: SIM118  (no mapping)
                dtype = weights.get_slice(name).get_dtype()
                if name.endswith(".weight") and dtype in _NO_FLOATS:
                    raise OptionError(
                        f"pretrained={pretrained}: {name} has the type {dtype} and config.json names no "
                        "quantization_config; weights must be floating-point numbers"
                    )


def _weight_names(pretrained: str, revision: str, subfolder: str) -> set[str]:
    """Names in the checkpoint's safetensors files, from their index where there is one."""
    where: dict[str, Any] = {"revision": revision, "subfolder": subfolder}
    index = cached_file(pretrained, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **where)
    if index is not None:
        return set(json.loads(Path(index).read_text())["weight_map"])
    with safe_open(cached_file(pretrained, SAFE_WEIGHTS_NAME, **where), framework="pt") as weights:
        return set(weights.keys())


def _refuse(pretrained: str, what: str, names: set[str]) -> None:
    if names:
        shown = ", ".join(sorted(names)[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        raise OptionError(f"pretrained={pretrained}: {_counted(len(names))} {what}: {shown}{more}")


def _counted(n_weights: int) -> str:
    return "1 weight is" if n_weights == 1 else f"{n_weights} weights are"
