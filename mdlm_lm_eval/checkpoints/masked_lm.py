"""Masked language models that transformers ships (BERT, ModernBERT, ...)."""

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
