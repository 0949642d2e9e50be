"""A checkpoint's weights: in the classes of transformers, or in the authors' own network, for guests that need it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_utils import local_torch_dtype
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mdlm_lm_eval.default_model import model_path
from mdlm_lm_eval.families import family_of
from mdlm_lm_eval.loader import Foreign, load_foreign
from mdlm_lm_eval.options import OptionError, dtype_name

REMOTE = "remote"  # as `modeling`: the code that the checkpoint brings
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


def load_network(
    pretrained: str,
    named: str,
    *,
    revision: str,
    subfolder: str,
    trust_remote_code: bool,
    dtype: str | torch.dtype | None,
    device_map: Mapping[str, Any] | None = None,
    attn_implementation: str | None = None,
) -> Any:
    """The class that `named` says with the checkpoint's weights, on one device, in evaluation mode.

    It is built by itself and not by `from_pretrained`, which runs code of other versions of transformers only in part.
    Raises OptionError where it cannot be built, and for weights that are missing or unexpected.
    """
    published, _ = PretrainedConfig.get_config_dict(pretrained, revision=revision, subfolder=subfolder)
    wanted = str(dtype_name(dtype) if isinstance(dtype, str) else dtype or "auto").removeprefix("torch.")
    if wanted == "auto":
        wanted = str(published.get("torch_dtype") or published.get("dtype") or "float32")
    try:
        foreign = _class_of(published, pretrained, named, revision, trust_remote_code)
        device = (device_map or {}).get("", "cpu")
        with foreign.at_home(), local_torch_dtype(getattr(torch, wanted)), torch.device(device):
            # transformers 4 took flash attention wherever a config asks for it, and code of then knows the others.
            implementation = attn_implementation or (
                "sdpa" if foreign.thing.__dict__.get("_supports_sdpa") else "eager"
            )
            config = foreign.thing.config_class.from_dict(published | {"attn_implementation": implementation})
            for name in published.keys() - {"attn_implementation"}:
                if not hasattr(config, name):  # of what transformers 5 takes away, as use_cache
                    setattr(config, name, published[name])
            network = foreign.thing(config).to(device)
    except (OptionError, KeyboardInterrupt, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise OptionError(
            f"modeling={named} does not load with transformers {transformers.__version__}; the checkpoint was saved "
            f"with {published.get('transformers_version', 'an unknown version')}: {type(error).__name__}: {error}"
        ) from error
    folder = pretrained
    if not Path(pretrained).is_dir():
        folder = snapshot_download(pretrained, revision=revision, allow_patterns=["*.safetensors"])
    _load_weights(network, Path(folder, subfolder), pretrained)
    return network.eval()


def _class_of(published: Mapping[str, Any], pretrained: str, named: str, revision: str, trusted: bool) -> Foreign:
    """The network's class. Raises OptionError where the checkpoint's own may not run, or there is none."""
    if named != REMOTE:
        return load_foreign("modeling", named)
    offered = published.get("auto_map", {})
    kind = next(
        (name for name in ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel") if name in offered), None
    )
    if not trusted or kind is None:
        raise OptionError("modeling=remote needs trust_remote_code=true and a checkpoint that brings its own code")
    return Foreign(get_class_from_dynamic_module(offered[kind], pretrained, revision=revision), None, None)


def _load_weights(network: torch.nn.Module, folder: Path, pretrained: str) -> None:
    missing, unexpected = {*network.state_dict()}, set()
    for file in sorted(folder.glob("*.safetensors")):
        loaded = load_file(file)
        unexpected |= {*network.load_state_dict(loaded, strict=False).unexpected_keys}
        missing -= loaded.keys()
    refuse_weights(pretrained, "missing", missing)
    refuse_weights(pretrained, "unexpected", unexpected)


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
