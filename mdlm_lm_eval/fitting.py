"""Model arguments on a certain model: what its config and tokenizer decide, before its weights are read."""

from dataclasses import dataclass
from typing import cast

from lm_eval.models.utils import resolve_max_length
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from mdlm_lm_eval import families
from mdlm_lm_eval.context import context_length
from mdlm_lm_eval.decoding.requirements import check_decoding
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model_arguments import ModelArguments
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.values import parse_whole


@dataclass(frozen=True)
class Fitted:
    """Model arguments that a model can be run with; `max_length` is the tokens that fit on a canvas."""

    arguments: ModelArguments  # with the family's defaults
    mask_token_id: int
    shift_logits: bool
    attention: AttentionPattern
    max_length: int


def fit(arguments: ModelArguments, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Fitted:
    """Raises OptionError for what this model cannot do."""
    loading, family = arguments.loading, families.family_of(config)
    mask_token_id = families.resolve_mask_token_id(config, tokenizer, arguments.mask_token_id)
    defaults = dict(family.decoding_defaults)
    merged = arguments.with_family_defaults(defaults, full_attention=False)
    attention = families.attention_of(config, merged.decoding.block_length, loading.get("attn_implementation"))
    if attention.block_length is not None and attention.block_length % cast(int, defaults.get("small_block_length", 1)):
        del defaults["small_block_length"]  # made for the blocks that are published
    merged = arguments.with_family_defaults(defaults, full_attention=not attention.is_block_causal)
    arguments, decoding = merged, merged.decoding
    context = context_length(config, tokenizer)
    given = loading.get("prefix_token_id")
    prefix_token_id(tokenizer, given)
    if given is not None:
        parse_whole("prefix_token_id", given, most=config.get_text_config().vocab_size - 1)
    max_length = loading.get("max_length")
    if max_length is not None and resolve_max_length(config, tokenizer, default=0):
        parse_whole("max_length", max_length, least=2, most=context)
    max_length = max_length or context
    families.check_options(config, decoding)
    check_decoding(decoding, attention, edits=family.edits)
    if isinstance(decoding.n_masks, int) and decoding.n_masks >= max_length:
        raise OptionError(
            f"n_masks={decoding.n_masks} does not fit into the model's context of {max_length} tokens together with a "
            f"prompt; it must be auto or a whole number from 1 to {max_length - 1}"
        )
    shift = family.shift(config) if arguments.shift_logits is None else arguments.shift_logits
    return Fitted(arguments, mask_token_id, shift, attention, max_length)


def prefix_token_id(tokenizer: PreTrainedTokenizerBase, given: int | None) -> int:
    """Stands before a text that has no context: the given one, or the tokenizer's BOS, EOS or [CLS].

    Raises OptionError where there is none.
    """
    candidates = (given, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id)
    found = next((candidate for candidate in candidates if candidate is not None), None)
    if found is None:
        raise OptionError(
            "prefix_token_id is not set and the tokenizer names no token that texts begin with (BOS, EOS, [CLS]); "
            "it must be the id of one of its tokens"
        )
    return found
