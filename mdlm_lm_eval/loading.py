"""A checkpoint as a denoiser, for use from Python."""

from typing import Any

import torch

from mdlm_lm_eval import families
from mdlm_lm_eval.default_model import BUILT_IN
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import check_device
from mdlm_lm_eval.values import parse_flag, parse_whole


def load_denoiser(
    pretrained: str = BUILT_IN,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    peft: str | None = None,
    trust_remote_code: bool = False,
    revision: str = "main",
    subfolder: str = "",
    mask_token_id: int | None = None,
    shift_logits: bool | None = None,
    block_length: int | None = None,
    **from_pretrained_kwargs: Any,
) -> Denoiser:
    """The denoiser of a checkpoint; no tokenizer is read where the config names the mask token.

    `pretrained` is a hub id, a folder, or the name of a model that comes with the package; `dtype` is the checkpoint's
    own by default; `block_length` is that of a block diffusion model whose config does not say it, or whose blocks
    shall be others. `from_pretrained_kwargs` go to transformers. Raises OptionError, before
    weights are read, for a checkpoint that is no masked diffusion model or that names no mask token.
    """
    where: dict[str, Any] = {
        "revision": revision,
        "subfolder": subfolder,
        "trust_remote_code": parse_flag("trust_remote_code", trust_remote_code),
    }
    if shift_logits is not None:
        shift_logits = parse_flag("shift_logits", shift_logits)
    if block_length is not None:
        block_length = parse_whole("block_length", block_length, least=1)
    if device is not None:
        check_device(device)
    config = families.load_config(pretrained, **where)
    settings = config.to_dict()
    tokenizer = None
    if mask_token_id is None and settings.get("mask_token_id") is None:
        tokenizer = families.load_tokenizer(pretrained, config=config, **where)
    mask_token_id = families.resolve_mask_token_id(config, tokenizer, mask_token_id)
    family = families.family_of(config)
    family.refuse("load_denoiser", pretrained)
    shift = family.shift(config) if shift_logits is None else shift_logits
    attention = families.attention_of(config, block_length, from_pretrained_kwargs.get("attn_implementation"))
    if device is not None:
        from_pretrained_kwargs.setdefault("device_map", {"": device})
    model: Any = families.load_model(pretrained, config, dtype=dtype, **where, **from_pretrained_kwargs)
    if peft is not None:
        model = families.load_adapter(model, peft, revision=revision)
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
