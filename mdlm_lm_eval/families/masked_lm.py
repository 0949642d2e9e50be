"""Masked language models that transformers ships (BERT, ModernBERT, ...)."""

from typing import Any

from torch import nn
from transformers import AutoModelForMaskedLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.registry import register_family


def model_class(_config: PretrainedConfig) -> Any:
    """transformers' encoder with its masked-LM head."""
    return AutoModelForMaskedLM


def positions_before_text(skeleton: nn.Module) -> int:
    """How many rows of the position embedding no token of a text uses: RoBERTa and its kin begin behind the padding."""
    for name, module in skeleton.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


register_family(
    Family(
        name="masked_lm",
        model_types=tuple(MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        model_class=model_class,
        unused_weights=("pooler.", "cls.seq_relationship."),  # heads of BERT's pre-training
        reserved_positions=positions_before_text,
        refusals={
            # Guidance compares with the same canvas whose prompt is masked whole. Masked diffusion models are trained
            # on every mask ratio up to that one; masked LMs on a small share of a text.
            "cfg_scale": "a masked language model has no unconditional form, as it was not trained to fill a text "
            "whose prompt is masked whole; use cfg_scale=0",
            "cache": "encoders keep no keys and values; use cache=none",
        },
    )
)
