"""How many tokens fit on a canvas."""

from lm_eval.models.utils import resolve_max_length
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from mdlm_lm_eval import families


def context_length(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The model's positions that can hold a token, as config and tokenizer say; lm-eval's 2048 where neither does."""
    return resolve_max_length(config.get_text_config(), tokenizer) - families.reserved_positions(config)
