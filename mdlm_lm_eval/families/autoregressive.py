"""Decoders of transformers that are no masked diffusion models, or not known to be usable as one."""

from transformers import PretrainedConfig

from mdlm_lm_eval.families.bidirectional_decoders import DENSE, SPARSE
from mdlm_lm_eval.families.bidirectional_decoders import check as check_causality
from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.registry import register_family


def check(config: PretrainedConfig) -> str:
    """Complains of every model."""
    return check_causality(config) or (
        f"model_type={config.model_type!r} with is_causal=false must be one of {', '.join((*DENSE, *SPARSE))}"
    )


register_family(Family(name="autoregressive", check=check))
