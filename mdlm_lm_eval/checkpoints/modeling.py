"""The authors' own network of a checkpoint, for functions that need it: `modeling=FILE.py:CLASS`, or `remote`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from transformers import PretrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_utils import local_torch_dtype

from mdlm_lm_eval.checkpoints.weights import refuse_weights
from mdlm_lm_eval.loader import Foreign, load_foreign
from mdlm_lm_eval.options import OptionError, dtype_name

REMOTE = "remote"


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
