"""Tokenizers of the published checkpoints, without their remote code."""

from typing import Any

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE

from mdlm_lm_eval.default_model import BUILT_IN, model_path
from mdlm_lm_eval.families.loading.config import load_config
from mdlm_lm_eval.families.loading.errors import refusing
from mdlm_lm_eval.families.loading.hub import check_folder
from mdlm_lm_eval.families.loading.settings import read_settings
from mdlm_lm_eval.families.registry import all_families, family_of
from mdlm_lm_eval.values import parse_whole

# Of keys of tokenizer_config.json, which transformers takes as they come.
_TYPES: dict[str, Any] = {
    **{f"{name}_token": str | dict | None for name in ("bos", "cls", "eos", "mask", "pad", "sep", "unk")},
    "tokenizer_class": str | None,
    "added_tokens_decoder": dict[str, dict] | None,
    "additional_special_tokens": list | None,
    "extra_special_tokens": dict | list | None,
    "model_max_length": int | float | None,
    "chat_template": str | list | dict | None,
}


def load_tokenizer(
    pretrained: str = BUILT_IN,
    *,
    config: PretrainedConfig | None = None,
    revision: str | None = "main",
    subfolder: str | None = "",
    trust_remote_code: bool | None = False,
    use_fast_tokenizer: bool | None = True,
    add_bos_token: bool | None = None,
) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, knowing its mask and padding tokens where their ids have names.

    `pretrained` is a hub id, a folder, or the built-in model's name; its config is read where none is given.
    `add_bos_token` overrides whether it begins texts with BOS (Dream's evaluation does, its tokenizer does not).
    Raises OptionError where the tokenizer's files are missing or unreadable.
    """
    where: dict[str, Any] = {"revision": revision or "main", "subfolder": subfolder or ""}
    pretrained = model_path(pretrained)
    if config is None:
        config = load_config(pretrained, trust_remote_code=trust_remote_code, **where)
    check_folder("tokenizer", pretrained)
    bos: dict[str, Any] = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    with refusing(f"tokenizer of {pretrained} cannot be loaded"):
        published = read_settings(pretrained, TOKENIZER_CONFIG_FILE, _TYPES, **where) or {}
        tokenizer_class = family_of(config).tokenizer_class(published.get("tokenizer_class"))
        if tokenizer_class is AutoTokenizer:
            bos |= {"use_fast": bool(use_fast_tokenizer), "trust_remote_code": bool(trust_remote_code)}
        tokenizer = tokenizer_class.from_pretrained(pretrained, **where, **bos)
    settings = config.to_dict()
    if tokenizer.mask_token_id is None:
        name = _name_of(tokenizer, settings.get("mask_token_id"))
        if name is not None:
            tokenizer.mask_token = name
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _name_of(tokenizer, settings.get("pad_token_id")) or tokenizer.eos_token
    return tokenizer


def tokenizer_of_file(_class_name: str | None) -> Any:
    """The class for families whose `tokenizer.json` says all.

    AutoTokenizer would see Llama's or Qwen's config and rebuild their pre-tokenizer in place of the file's.
    """
    return PreTrainedTokenizerFast


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of the tokens that end an assistant's turn in the families' chat formats; a tokenizer has none or one."""
    vocabulary = tokenizer.get_added_vocab()
    tokens = {token for family in all_families().values() for token in family.end_of_turn}
    return frozenset(vocabulary[token] for token in tokens if token in vocabulary)


def eos_ids(tokenizer: PreTrainedTokenizerBase, generation_eos: int | list[int] | None) -> frozenset[int]:
    """Ids of EOS, by tokenizer and generation config, that are no ends of turn. Raises OptionError."""
    ids = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    if generation_eos is not None:
        ids.update(generation_eos if isinstance(generation_eos, list) else [generation_eos])
    for id in ids:
        parse_whole("eos_token_id of generation_config.json", id)
    return frozenset(ids) - end_of_turn_ids(tokenizer)


def _name_of(tokenizer: PreTrainedTokenizerBase, token_id: int | None) -> str | None:
    # Embeddings have more rows than the tokenizer has names (LLaDA Base), so an id may have none.
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokenizer):
        return None
    return tokenizer.convert_ids_to_tokens(token_id)
