"""LLaDA-MoE (`model_type` lladamoe): a Qwen3-MoE with bidirectional attention and every layer sparse."""

from typing import Any

from transformers import Qwen3MoeConfig

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.loading.experts import expert_weight_names
from mdlm_lm_eval.families.loading.published import require
from mdlm_lm_eval.families.loading.tokenizers import tokenizer_of_file
from mdlm_lm_eval.families.registry import register_family
from mdlm_lm_eval.options import OptionError

# Settings that the published modelling code reads, with the values that are a Qwen3-MoE.
QWEN3_MOE_SETTINGS: dict[str, tuple[object, ...]] = {
    "qk_layernorm": (True,),
    "partial_rotary_factor": (1, None),
    "clip_qkv": (None,),
    "shared_expert_intermediate_size": (None, 0),
    "moe_router_enable_expert_bias": (None, False),
    "moe_router_score_function": (None, "softmax"),
    "routed_scaling_factor": (1, None),
}


def native_config(published: dict[str, Any]) -> Qwen3MoeConfig:
    """Qwen3MoeConfig for a LLaDA-MoE `config.json`; OptionError where a setting has no Qwen3-MoE equivalent."""
    require("LLaDA-MoE", published, QWEN3_MOE_SETTINGS)
    layers = published.get("moe_layer_freq")
    if isinstance(layers, list) and not all(layers):
        raise OptionError(f"LLaDA-MoE config: moe_layer_freq={layers} is not supported; every layer must be sparse (1)")
    unmapped = {"model_type", "auto_map", "architectures", "moe_layer_freq", *QWEN3_MOE_SETTINGS}
    settings = {name: value for name, value in published.items() if name not in unmapped}
    return Qwen3MoeConfig(
        **settings
        | {
            "moe_intermediate_size": published["expert_intermediate_size"],
            "norm_topk_prob": bool(published.get("norm_topk_prob")),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "architectures": ["Qwen3MoeForCausalLM"],
            "mask_token_id": published.get("mask_token_id", 156895),
        }
    )


register_family(
    Family(
        name="llada_moe",
        model_types=("lladamoe",),
        native_config=native_config,
        expert_weight_names=expert_weight_names,
        tokenizer_class=tokenizer_of_file,
        end_of_turn=("<|role_end|>",),
    )
)
