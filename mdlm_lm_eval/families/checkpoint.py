"""A checkpoint's weights in transformers' own classes, and all of it as a denoiser."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mdlm_lm_eval.default_model import BUILT_IN, model_path
from mdlm_lm_eval.families.adapters import load_adapter
from mdlm_lm_eval.families.config import attention_of, load_config, resolve_mask_token_id
from mdlm_lm_eval.families.registry import family_of
from mdlm_lm_eval.families.tokenizers import load_tokenizer
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError

_NAMES_SHOWN = 5
_DIGESTED_BYTES = 2**20


def load_denoiser(
    pretrained: str = BUILT_IN,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    peft: str | None = None,
    trust_remote_code: bool = False,
    revision: str = "main",
    subfolder: str = "",
    diffusion_family: str | None = None,
    mask_token_id: int | None = None,
    shift_logits: bool | None = None,
    block_length: int | None = None,
    **from_pretrained_kwargs: Any,
) -> Denoiser:
    """The denoiser of a checkpoint; no tokenizer is read where the config names the mask token.

    `pretrained` is a hub id, a folder, or the name of a model that comes with the package; `dtype` is the checkpoint's
    own by default; `diffusion_family` names the family where the config does not; `block_length` replaces that of
    a block diffusion model. `from_pretrained_kwargs` go to transformers. Raises OptionError, before weights are read,
    for a checkpoint that is no masked diffusion model or that names no mask token.
    """
    if shift_logits not in (True, False, None):
        raise OptionError(f"shift_logits must be true or false, not {shift_logits}")
    where: dict[str, Any] = {"revision": revision, "subfolder": subfolder, "trust_remote_code": trust_remote_code}
    config = load_config(pretrained, diffusion_family=diffusion_family, **where)
    settings = config.to_dict()
    tokenizer = None
    if mask_token_id is None and settings.get("mask_token_id") is None:
        tokenizer = load_tokenizer(pretrained, config=config, **where)
    mask_token_id = resolve_mask_token_id(config, tokenizer, mask_token_id)
    family = family_of(config)
    family.refuse("load_denoiser", pretrained)
    shift = family.shift(config) if shift_logits is None else shift_logits
    attention = attention_of(config, block_length, from_pretrained_kwargs.get("attn_implementation"))
    if device is not None:
        from_pretrained_kwargs.setdefault("device_map", {"": device})
    model: Any = load_model(pretrained, config, dtype=dtype, **where, **from_pretrained_kwargs)
    if peft is not None:
        model = load_adapter(model, peft, revision=revision)
    # Padding is never attended to, so any id does where the checkpoint names none, or one without an embedding, as -1.
    pad_token_id = settings.get("pad_token_id")
    has_pad = isinstance(pad_token_id, int) and 0 <= pad_token_id < config.get_text_config().vocab_size
    return Denoiser(
        model,
        mask_token_id=mask_token_id,
        pad_token_id=pad_token_id if has_pad else mask_token_id,
        shift=shift,
        attention=attention,
        edits=family.edits,
    )


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
    try:
        model, info = loader.from_pretrained(
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
    except RuntimeError as error:
        if "conversion of the weights" not in str(error):
            raise
        raise OptionError(
            f"pretrained={pretrained}: weights are missing or of another shape among those that are split or joined "
            "while loading; transformers' report above names them"
        ) from error
    unexpected = {
        name for name in info["unexpected_keys"] if not any(unused in name for unused in family.unused_weights)
    }
    _refuse(pretrained, "missing", set(info["missing_keys"]))
    _refuse(pretrained, "unexpected", unexpected)
    _refuse(pretrained, "of another shape than its config says", {name for name, *_ in info["mismatched_keys"]})
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


def _refuse(pretrained: str, what: str, names: set[str]) -> None:
    if names:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        listed = ", ".join(sorted(names)[:_NAMES_SHOWN])
        raise OptionError(f"pretrained={pretrained}: weights {what}: {listed}{more}")


def load_skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """The model of `config` on the meta device, without weights: its modules' names and shapes."""
    with torch.device("meta"):
        return family_of(config).model_class(config).from_config(config)


def context_length(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that fit on a canvas, as config and tokenizer say; lm-eval's 2048 where neither does."""
    text = config.get_text_config()
    told = [getattr(text, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx")]
    told += [tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else None]
    return int(next((length for length in told if length is not None), 2048)) - reserved_positions(config)


def reserved_positions(config: PretrainedConfig) -> int:
    """How many of the positions that the config names hold no token."""
    reserved = family_of(config).reserved_positions
    return 0 if reserved is None else reserved(load_skeleton(config))


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
