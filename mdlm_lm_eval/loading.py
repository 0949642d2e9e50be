"""A checkpoint as a denoiser, for use from Python."""

from typing import Any

import torch

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.denoiser import Denoiser


def load_denoiser(
    pretrained: str,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    peft: str | None = None,
    trust_remote_code: bool = False,
    revision: str = "main",
    subfolder: str = "",
    mask_token_id: int | None = None,
    shift_logits: bool | None = None,
    **from_pretrained_kwargs: Any,
) -> Denoiser:
    """The denoiser of a checkpoint (hub id or folder); no tokenizer is read where the config names the mask token.

    `dtype` is the checkpoint's own by default. `from_pretrained_kwargs` go to transformers. Raises OptionError, before
    weights are read, for a checkpoint that is no masked diffusion model or that names no mask token.
    """
    where: dict[str, Any] = {
        "revision": revision,
        "subfolder": subfolder,
        "trust_remote_code": trust_remote_code,
    }
    config = checkpoints.load_config(pretrained, **where)
    settings = config.to_dict()
    tokenizer = None
    if mask_token_id is None and settings.get("mask_token_id") is None:
        tokenizer = checkpoints.load_tokenizer(pretrained, config=config, **where)
    mask_token_id = checkpoints.resolve_mask_token_id(config, tokenizer, mask_token_id)
    shift = checkpoints.shifts_logits(config) if shift_logits is None else shift_logits
    if device is not None:
        from_pretrained_kwargs.setdefault("device_map", {"": device})
    model: Any = checkpoints.load_model(pretrained, config, dtype=dtype, **where, **from_pretrained_kwargs)
    if peft is not None:
        model = checkpoints.load_adapter(model, peft, revision=revision)
    # Padding is never attended to, so any id does where the checkpoint names none.
    pad_token_id = settings.get("pad_token_id")
    return Denoiser(
        model,
        mask_token_id=mask_token_id,
        pad_token_id=mask_token_id if pad_token_id is None else pad_token_id,
        shift=shift,
    )
