"""Masked language models that transformers ships (BERT, ModernBERT, ...)."""

from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

# Heads of BERT's pre-training that a masked LM has no use for.
UNUSED_HEADS = ("pooler.", "cls.seq_relationship.")


def is_masked_lm(config: PretrainedConfig) -> bool:
    """Whether transformers has a masked LM class for this config."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING


def is_unused_head(weight_name: str) -> bool:
    """Whether a weight of the checkpoint belongs to a head that the masked LM does not have."""
    return any(head in weight_name for head in UNUSED_HEADS)


def positions_before_text(skeleton: nn.Module) -> int:
    """How many rows of the position embedding no token of a text uses: RoBERTa and its kin begin behind the padding."""
    for name, module in skeleton.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0
