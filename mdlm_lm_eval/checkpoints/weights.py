"""A checkpoint's weights in the classes of transformers."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mdlm_lm_eval.default_model import model_path
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.options import OptionError, dtype_name

_NAMES_SHOWN = 5
_DIGESTED_BYTES = 2**20


def load_model(
    pretrained: str,
    config: PretrainedConfig,
    *,
    revision: str = "main",
    subfolder: str = "",
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **from_pretrained_kwargs: Any,
) -> PreTrainedModel:
    """The model of `config` with the checkpoint's weights, in evaluation mode.

    `from_pretrained_kwargs` (device_map, quantization_config, attn_implementation, tp_plan, ...) go to transformers.
    Raises OptionError for weights that are missing, unexpected, or of another shape.
    """
    pretrained, family = model_path(pretrained), family_of(config)
    loader, conversions = family.model_class(config), family.weight_conversions()
    if family.weight_names:
        from_pretrained_kwargs["key_mapping"] = dict(family.weight_names)
    if conversions:
        if from_pretrained_kwargs.get("tp_plan") is not None:
            # transformers would split parts of a weight that is still to be split into others.
            raise OptionError(f"tp_plan does not work with the family {family.name}; use device_map=auto")
        # transformers finds conversions by the name of a model's class. The family's are registered for a subclass, and
        # so rule neither other checkpoints of transformers' class nor what `save_pretrained` writes. In the module of
        # the subclass it looks for whether the experts have fast implementations.
        native = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        loader = type(f"{native.__name__}_{family.name}", (native,), {"__module__": native.__module__})
        register_checkpoint_conversion_mapping(loader.__name__, conversions, overwrite=True)
    model, info = loader.from_pretrained(
        pretrained,
        config=config,
        revision=revision,
        subfolder=subfolder,
        dtype=dtype_name(dtype) if isinstance(dtype, str) else dtype or "auto",
        trust_remote_code=trust_remote_code and family.remote_code,
        ignore_mismatched_sizes=True,  # reported below, by name, with the missing ones
        output_loading_info=True,
        **from_pretrained_kwargs,
    )
    unexpected = {
        name for name in info["unexpected_keys"] if not any(unused in name for unused in family.unused_weights)
    }
    refuse_weights(pretrained, "missing", set(info["missing_keys"]))
    refuse_weights(pretrained, "unexpected", unexpected)
    refuse_weights(pretrained, "of another shape than its config says", {name for name, *_ in info["mismatched_keys"]})
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
    family.adapt(model)
    return model.eval()


def refuse_weights(pretrained: str, what: str, names: set[str]) -> None:
    """Raises OptionError where there are any."""
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        listed = ", ".join(sorted(names)[:_NAMES_SHOWN])
        raise OptionError(f"pretrained={pretrained}: weights {what}: {listed}{more}")


def files_digest(checkpoint: str, subfolder: str = "") -> str | None:
    """SHA-256 of the weights in a folder: names, sizes, and each file's first and last MiB, which any training changes.

    `subfolder` is the one that is loaded, if any. None for a hub id, which its revision names.
    """
    folder = Path(model_path(checkpoint), subfolder)
    paths = sorted(path for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern) if path.is_file())
    if not paths:
        return None
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_DIGESTED_BYTES))
            file.seek(max(size - _DIGESTED_BYTES, 0))
            digest.update(file.read())
    return digest.hexdigest()
