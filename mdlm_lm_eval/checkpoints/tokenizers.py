"""Tokenizers of the published checkpoints, without their remote code."""

from typing import Any

from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mdlm_lm_eval.checkpoints.configs import family_of, one_line
from mdlm_lm_eval.options import OptionError

# Remote tokenizer class -> its equal in transformers. Dream's is Qwen2's byte-level BPE with added tokens.
NATIVE_TOKENIZERS = {"DreamTokenizer": Qwen2Tokenizer}


def load_tokenizer(
    pretrained: str,
    *,
    config: PretrainedConfig,
    revision: str | None = "main",
    subfolder: str | None = "",
    trust_remote_code: bool | None = False,
    use_fast_tokenizer: bool | None = True,
    add_bos_token: bool | None = None,
) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, knowing its mask and padding tokens where their ids have names.

    `add_bos_token` overrides whether it begins texts with BOS (Dream's evaluation does, its tokenizer does not).
    Raises OptionError where the tokenizer's files are missing or unreadable.
    """
    where: dict[str, Any] = {"revision": revision or "main", "subfolder": subfolder or ""}
    bos = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    try:
        class_name = get_tokenizer_config(pretrained, **where).get("tokenizer_class")
        if class_name in NATIVE_TOKENIZERS:
            tokenizer = NATIVE_TOKENIZERS[class_name].from_pretrained(pretrained, **where, **bos)
        elif family_of(config) in ("llada", "llada_moe"):
            # AutoTokenizer would see Llama's or Qwen's config and rebuild their pre-tokenizer in place of the file's.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(pretrained, **where, **bos)
        else:
            tokenizer = AutoTokenizer.from_pretrained(
                pretrained, use_fast=bool(use_fast_tokenizer), trust_remote_code=bool(trust_remote_code), **where, **bos
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"tokenizer of {pretrained} cannot be loaded: {one_line(error)}") from error
    settings = config.to_dict()
    if tokenizer.mask_token_id is None:
        name = _name_of(tokenizer, settings.get("mask_token_id"))
        if name is not None:
            tokenizer.mask_token = name
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _name_of(tokenizer, settings.get("pad_token_id")) or tokenizer.eos_token
    return tokenizer


def _name_of(tokenizer: PreTrainedTokenizerBase, token_id: int | None) -> str | None:
    # Embeddings have more rows than the tokenizer has names (LLaDA Base), so an id may have none.
    if token_id is None or not 0 <= token_id < len(tokenizer):
        return None
    return tokenizer.convert_ids_to_tokens(token_id)
