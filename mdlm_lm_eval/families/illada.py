"""iLLaDA (`model_type` illada): a Llama with bidirectional attention, tied embeddings and grouped queries.

Mapping after the inference code of iLLaDA's modelling file (arXiv:2606.25331).
"""

from functools import partial

from transformers import LlamaConfig

from mdlm_lm_eval.families import Family, register_family, tokenizer_of_file
from mdlm_lm_eval.families.config_mapping import same_keys

register_family(
    Family(
        name="illada",
        model_types=("illada",),
        native_config=partial(
            same_keys,
            "iLLaDA",
            LlamaConfig,
            unused="resid_pdrop",
            values={"layer_norm_eps": (None,), "rope_scaling": (None,)},  # a number would mean LayerNorm
            # `<[MASK]>`; neither the published config nor the tokenizer names a mask token.
            defaults={"mask_token_id": 5},
            architectures=["LlamaForCausalLM"],
        ),
        tokenizer_class=tokenizer_of_file,
    )
)
