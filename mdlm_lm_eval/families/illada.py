"""iLLaDA (`model_type` illada): a Llama with bidirectional attention, tied embeddings and grouped queries.

Mapping after the inference code of iLLaDA's modelling file (arXiv:2606.25331).
"""

from typing import Any

from transformers import LlamaConfig

from mdlm_lm_eval.families import Family, register_family, tokenizer_of_file
from mdlm_lm_eval.families.config_mapping import same_keys

MASK_TOKEN_ID = 5  # `<[MASK]>`; neither the published config nor the tokenizer names a mask token


def native_config(published: dict[str, Any]) -> LlamaConfig:
    """LlamaConfig for an iLLaDA `config.json`; OptionError for a setting without Llama equivalent."""
    return same_keys(
        "iLLaDA",
        LlamaConfig,
        published,
        unused="resid_pdrop",
        values={"layer_norm_eps": (None,), "rope_scaling": (None,)},  # a number would mean LayerNorm
        architectures=["LlamaForCausalLM"],
        mask_token_id=published.get("mask_token_id", MASK_TOKEN_ID),
    )


register_family(
    Family(name="illada", model_types=("illada",), native_config=native_config, tokenizer_class=tokenizer_of_file)
)
