"""Nemotron-Labs-Diffusion (`model_type` nemotron_labs_diffusion): a causal Ministral 3 that denoises blocks.

Attention is causal in the prompt and in finished blocks, and bidirectional within the block that is denoised. The
mapping follows the published modelling file and two independent descriptions of its backbone.
"""

from functools import partial

from transformers import Ministral3Config

from mdlm_lm_eval.families import WITHOUT_CACHE, Family, blocks, register_family
from mdlm_lm_eval.families.config_mapping import same_keys

OWN_OPTIONS = {"cache", "mode", "causal_context", "end_think", "max_thinking_tokens"}


register_family(
    Family(
        name="nemotron_labs_diffusion",
        model_types=("nemotron_labs_diffusion",),
        native_config=partial(
            same_keys,
            "Nemotron-Labs-Diffusion",
            Ministral3Config,
            unused="block_size ar_loss_weight dlm_loss_weight dp_varying_mask_ratio",
            values={
                "dlm_paradigm": ("bidirectional",),
                "attention_bias": (False,),
                "mlp_bias": (False,),
                "sliding_window": (None,),
            },
            defaults={"mask_token_id": 100},
            blocks=(32, "block_size"),
            architectures=["Ministral3ForCausalLM"],
        ),
        weight_names={r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."},
        attention=blocks(blocks_from="prompt_end", whole_prompt=True, causal_context=True),
        # Other options that do not work with block-causal attention are refused elsewhere.
        supports=WITHOUT_CACHE - {"infill", "filler", "n_fillers", "small_block_length"} | OWN_OPTIONS,
        instead="its blocks follow the prompt",
    )
)
