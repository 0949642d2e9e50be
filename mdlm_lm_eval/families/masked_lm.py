"""Masked language models that transformers ships (BERT, ModernBERT, ...)."""

from torch import nn
from transformers import AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from mdlm_lm_eval.families import WITHOUT_CACHE, Family, register_family


def positions_before_text(skeleton: nn.Module) -> int:
    """Number of position embeddings before the first token's: RoBERTa's positions begin after the padding id."""
    for name, module in skeleton.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


register_family(
    Family(
        name="masked_lm",
        model_types=tuple(MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        model_class=lambda _config: AutoModelForMaskedLM,
        closes_texts=True,
        may_see_padding=True,  # FNet has no attention, and so no mask of it
        # Heads of BERT's and ALBERT's pre-training.
        unused_weights=("pooler.", "cls.seq_relationship.", "sop_classifier."),
        reserved_positions=positions_before_text,
        # Encoders have no KV cache. Guidance needs a pass in which the whole prompt is masked, and masked LMs are
        # trained with a small share of masks.
        supports=WITHOUT_CACHE - {"cfg_scale"},
        instead="a masked language model keeps no keys and values and has no unconditional form; use cache=none and "
        "cfg_scale=0",
    )
)
