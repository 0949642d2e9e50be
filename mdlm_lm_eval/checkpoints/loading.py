"""Loads a checkpoint as a denoiser on its devices, and computes how many tokens fit on its canvas."""

import logging
import os
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import get_max_memory
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedTokenizerBase

from mdlm_lm_eval.checkpoints.adapters import adapter_config, load_adapter
from mdlm_lm_eval.checkpoints.config import attention_of, load_config, resolve_mask_token_id
from mdlm_lm_eval.checkpoints.tokenizers import load_tokenizer
from mdlm_lm_eval.checkpoints.weights import load_model
from mdlm_lm_eval.families import Family, family_of, refuse_other_decoders
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.grouped_attention import use_grouped_attention
from mdlm_lm_eval.models import BUILT_IN
from mdlm_lm_eval.options import BITSANDBYTES, OptionError

logger = logging.getLogger(__name__)
_PROBED = 16  # tokens of a row


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
    ignore_weights: str | None = None,
    **from_pretrained_kwargs: Any,
) -> Denoiser:
    """Loads the model of a checkpoint.

    - `pretrained`: a hub id, a folder, or the name of a model that comes with the package.
    - `dtype`: the type of the weights, by default that of the checkpoint.
    - `device`: the device, such as `cuda`.
    - `peft`: the hub id or the folder of an adapter.
    - `trust_remote_code`, `revision`, `subfolder`: as in transformers.
    - `diffusion_family`: the family of the model, if the config fits several families.
    - `mask_token_id`: the id of the mask token, if the config and the tokenizer do not name it.
    - `shift_logits`: for an unknown model, whether its logits predict the next position, as in Dream.
    - `block_length`: another block length for a block-diffusion model.
    - `ignore_weights`: a regular expression. Unexpected weights are left out if it matches their whole names.

    Other keywords go to transformers. Raises OptionError for a checkpoint that is not a masked diffusion model, or
    that names no mask token.
    """
    if shift_logits not in (True, False, None):
        raise OptionError(f"shift_logits must be true or false, not {shift_logits}")
    if peft is not None:
        adapter_config(peft, revision=revision)  # raises OptionError before weights are read
    config = load_config(
        pretrained,
        revision=revision,
        subfolder=subfolder,
        trust_remote_code=trust_remote_code,
        diffusion_family=diffusion_family,
    )
    refuse_other_decoders(pretrained)
    settings = config.to_dict()
    tokenizer = None
    if mask_token_id is None and settings.get("mask_token_id") is None:
        tokenizer = load_tokenizer(
            pretrained, config=config, revision=revision, subfolder=subfolder, trust_remote_code=trust_remote_code
        )
    mask_token_id = resolve_mask_token_id(config, tokenizer, mask_token_id)
    family = family_of(config)
    family.refuse("load_denoiser", pretrained)
    shift = family.shift(config) if shift_logits is None else shift_logits
    attention = attention_of(config, block_length, from_pretrained_kwargs.get("attn_implementation"))
    if device is not None:
        from_pretrained_kwargs.setdefault("device_map", {"": device})
    model: Any = load_model(
        pretrained,
        config,
        revision=revision,
        subfolder=subfolder,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        ignore_weights=ignore_weights,
        **from_pretrained_kwargs,
    )
    use_grouped_attention(model.config)
    if peft is not None:
        model = load_adapter(model, peft, revision=revision)
    # Padding is never attended to. So any id will do if the checkpoint's is missing, or has no embedding (-1).
    pad_token_id = settings.get("pad_token_id")
    has_pad = isinstance(pad_token_id, int) and 0 <= pad_token_id < config.get_text_config().vocab_size
    return denoiser_of(
        model,
        family,
        mask_token_id=mask_token_id,
        pad_token_id=pad_token_id if has_pad else mask_token_id,
        shift=shift,
        attention=attention,
    )


def device_placement(loading: dict[str, Any]) -> tuple[dict[str, Any], Accelerator | None]:
    """Returns transformers' loading arguments with devices, and the processes that divide the requests among them.

    The model is on one device, or with `parallelize` on this process's share of all GPUs. With `tp_plan`, processes
    share the model and each has all requests; then None is returned for them. `load_in_4bit` and similar arguments,
    which transformers 5 no longer takes, become a quantisation config.
    """
    kin = {name: loading.pop(name) for name in list(loading) if name.startswith(BITSANDBYTES)}
    if kin.get("load_in_4bit") or kin.get("load_in_8bit"):
        loading["quantization_config"] = BitsAndBytesConfig(**kin)
    parallelize, offload = loading.pop("parallelize", False), loading.pop("offload_folder", "./offload")
    device, gpu_memory = loading.pop("device", None), loading.pop("max_memory_per_gpu", None)
    cpu_memory = loading.pop("max_cpu_memory", None)
    if loading.get("tp_plan") is not None:
        return loading, None
    devices.share_cpu_among_processes()
    processes = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(weeks=52))])
    n = processes.num_processes
    if parallelize and not torch.cuda.is_available():  # accelerate would offload all weights to disk
        logger.warning("parallelize=true has no effect without a GPU")
        parallelize = False
    if not parallelize:
        device = processes.device if n > 1 else devices.usable_device(device)
        return {"device_map": {"": str(device)}, **loading}, processes
    own, n_here = processes.local_process_index, int(os.environ.get("LOCAL_WORLD_SIZE", n))
    memory: dict[Any, Any] = {} if cpu_memory is None else {"cpu": cpu_memory}
    for gpu, free in get_max_memory().items():
        if gpu != "cpu" and gpu % n_here == own:
            memory[gpu] = gpu_memory or free
    return {"device_map": "auto", "max_memory": memory, "offload_folder": offload, **loading}, processes


def denoiser_of(model: Any, family: Family, **facts: Any) -> Denoiser:
    """The denoiser of a loaded model. `facts`: arguments of `Denoiser` that the family does not know."""
    denoiser = Denoiser(model, edits=family.edits, read=family.read, generate=family.generate, **facts)
    if family.may_see_padding:
        denoiser.rows_alone = _sees_padding(denoiser)
    return denoiser


def load(
    pretrained: str = BUILT_IN,
    *,
    trust_remote_code: bool = False,
    revision: str = "main",
    subfolder: str = "",
    diffusion_family: str | None = None,
    **of_denoiser: Any,
) -> tuple[Denoiser, PreTrainedTokenizerBase]:
    """Loads a checkpoint, and returns its model and its tokenizer. The arguments are those of `load_denoiser`."""
    source: dict[str, Any] = {"revision": revision, "subfolder": subfolder, "trust_remote_code": trust_remote_code}
    config = load_config(pretrained, diffusion_family=diffusion_family, **source)
    tokenizer = load_tokenizer(pretrained, config=config, **source)
    resolve_mask_token_id(config, tokenizer, of_denoiser.get("mask_token_id"))
    denoiser = load_denoiser(pretrained, diffusion_family=diffusion_family, **source, **of_denoiser)
    return denoiser, tokenizer


def _sees_padding(denoiser: Denoiser) -> bool:
    """Whether the ids under the padding change the logits of other positions; a warning says so.

    It is tried with two rows in two passes of the same shape, so that equal logits are equal to the last bit.
    """
    vocab_size = denoiser.model.config.get_text_config().vocab_size
    free = [id for id in range(min(vocab_size, 64)) if id != denoiser.mask_token_id]
    ids = torch.tensor([(free * _PROBED)[:_PROBED]] * 2, device=denoiser.device)
    other = ids.clone()
    other[1, _PROBED // 2 :] = ids[1, : _PROBED // 2]
    is_real = torch.ones_like(ids)
    is_real[1, _PROBED // 2 :] = 0
    positions = is_real.flatten().nonzero().flatten()
    one, two = (denoiser.logits(each, is_real, positions, is_aligned=True) for each in (ids, other))
    if torch.equal(one, two):
        return False
    logger.warning("%s: padding changes its logits; each row of a batch runs alone", type(denoiser.model).__name__)
    return True


def context_length(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Number of tokens that fit on a canvas: from the config, else the tokenizer, else 2048 as in lm-eval."""
    text = config.get_text_config()
    told = [getattr(text, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx")]
    told += [tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else None]
    return int(next((length for length in told if length is not None), 2048)) - reserved_positions(config)


def reserved_positions(config: PretrainedConfig) -> int:
    """Number of positions in the config that cannot hold a token."""
    family = family_of(config)
    if family.reserved_positions is None:
        return 0
    with torch.device("meta"):
        return family.reserved_positions(family.model_class(config).from_config(config))
