"""LLaDA-MoE (`model_type` lladamoe or llada): a Qwen3-MoE with bidirectional attention and every layer sparse."""

from typing import Any

from transformers import Qwen3MoeConfig

from mdlm_lm_eval.families import Family, register_family, tokenizer_of_file
from mdlm_lm_eval.families.config_mapping import same_keys
from mdlm_lm_eval.options import OptionError

MOE_KEY = "expert_intermediate_size"  # LLaDA, which has the same model_type on the hub, lacks this key

# Settings that the published modelling code reads, with the values that make it a Qwen3-MoE.
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
    """Qwen3MoeConfig for a LLaDA-MoE `config.json`; OptionError for a setting without Qwen3-MoE equivalent."""
    layers = published.get("moe_layer_freq")
    if isinstance(layers, list) and not all(layers):
        raise OptionError(f"LLaDA-MoE config: moe_layer_freq={layers} is not supported; every layer must be sparse (1)")
    return same_keys(
        "LLaDA-MoE",
        Qwen3MoeConfig,
        published,
        unused=f"{MOE_KEY} dense_intermediate_size moe_layer_freq router_num_group router_topk_group",
        values=QWEN3_MOE_SETTINGS,
        defaults={"mask_token_id": 156895},
        moe_intermediate_size=published[MOE_KEY],
        norm_topk_prob=bool(published.get("norm_topk_prob")),
        decoder_sparse_step=1,
        mlp_only_layers=[],
        architectures=["Qwen3MoeForCausalLM"],
    )


register_family(
    Family(
        name="llada_moe",
        model_types=("lladamoe", "llada"),
        config_key=MOE_KEY,
        native_config=native_config,
        tokenizer_class=tokenizer_of_file,
        end_of_turn=("<|role_end|>",),
    )
)
