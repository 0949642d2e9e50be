"""LLaDA2.0 and LLaDA2.1 (`model_type` llada2_moe): block diffusion on a GLM-4 mixture of experts.

Mapping after their published modelling code (Bie et al., 2025, arXiv:2512.15745). Both are the same network; 2.1 is
trained to change tokens that it has written, and decodes so.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.loading.experts import expert_weight_names
from mdlm_lm_eval.families.loading.published import blocks_from_row_start, require
from mdlm_lm_eval.families.loading.tokenizers import tokenizer_of_file
from mdlm_lm_eval.families.registry import register_family
from mdlm_lm_eval.options import OptionError

BLOCK_LENGTH = 32  # of training and of all published decoding settings; no config says it

# Settings that the published modelling code reads, with the values that are a GLM-4-MoE.
GLM4_MOE_SETTINGS: dict[str, tuple[object, ...]] = {
    "score_function": ("sigmoid",),
    "moe_router_enable_expert_bias": (True,),
    "norm_topk_prob": (True,),
    "use_bias": (False,),
    "use_rmsnorm": (True,),
    "use_sliding_window": (False,),  # a sliding_window stands beside it, which nothing reads then
    "using_split_qkv_in_self_attention": (False,),
    "norm_head": (False,),
    "rope_scaling": (None,),
    "hidden_act": ("silu",),
}
SAME_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "first_k_dense_replace",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
)

# Checkpoint names (regular expressions) -> GLM-4-MoE's; the rest are the same.
WEIGHT_NAMES = {
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"^model\.layers\.(\d+)\.attention\.dense\.": r"model.layers.\1.self_attn.o_proj.",
    r"^model\.layers\.(\d+)\.attention\.query_layernorm\.": r"model.layers.\1.self_attn.q_norm.",
    r"^model\.layers\.(\d+)\.attention\.key_layernorm\.": r"model.layers.\1.self_attn.k_norm.",
    r"^model\.layers\.(\d+)\.mlp\.gate\.expert_bias$": r"model.layers.\1.mlp.gate.e_score_correction_bias",
}


def native_config(published: dict[str, Any]) -> PretrainedConfig:
    """Glm4MoeConfig for a LLaDA2 `config.json`; OptionError where a setting has no equivalent.

    Raises ImportError where the installed transformers lacks GLM-4-MoE or cannot split weights.
    """
    from transformers import Glm4MoeConfig
    from transformers.core_model_loading import Split  # noqa: F401  before weights are read

    require("LLaDA2", published, GLM4_MOE_SETTINGS)
    if not published["num_shared_experts"]:
        raise OptionError("LLaDA2 config: num_shared_experts=0 is not supported; it must be a whole number from 1")
    if published["num_experts"] % published["n_group"] or published["topk_group"] > published["n_group"]:
        raise OptionError(
            f"LLaDA2 config: n_group={published['n_group']} and topk_group={published['topk_group']} do not divide "
            f"num_experts={published['num_experts']} into groups"
        )
    rotary = {name: published[name] for name in ("rope_theta", "partial_rotary_factor")}
    return Glm4MoeConfig(
        **{name: published[name] for name in SAME_KEYS},
        n_routed_experts=published["num_experts"],
        n_shared_experts=published["num_shared_experts"],
        attention_bias=bool(published.get("use_qkv_bias", False)),
        use_qk_norm=bool(published.get("use_qk_norm", True)),
        norm_topk_prob=True,
        num_nextn_predict_layers=0,
        rope_parameters={"rope_type": "default", **rotary},
        bos_token_id=published.get("bos_token_id"),
        eos_token_id=published.get("eos_token_id", published.get("pad_token_id")),
        pad_token_id=published.get("pad_token_id"),
        dtype=published.get("dtype", published.get("torch_dtype")),
        quantization_config=published.get("quantization_config"),
        architectures=["Glm4MoeForCausalLM"],
        mask_token_id=published.get("mask_token_id", 156895),
        block_length=published.get("block_length", BLOCK_LENGTH),
    )


def weight_conversions() -> list[Any]:
    """Queries, keys and values are published in one matrix; GLM-4-MoE has them apart."""
    from transformers.core_model_loading import Split, WeightConverter

    projections = [f"self_attn.{name}_proj" for name in "qkv"]
    return [WeightConverter("attention.query_key_value", projections, operations=[Split(dim=0)])]


def llada2(name: str, published_as: str | None, decoding_defaults: Mapping[str, object]) -> Family:
    """One of the two releases."""
    return Family(
        name=name,
        model_types=("llada2_moe",),
        published_as=published_as,
        native_config=native_config,
        weight_names=WEIGHT_NAMES,
        weight_conversions=weight_conversions,
        expert_weight_names=expert_weight_names,
        tokenizer_class=tokenizer_of_file,
        end_of_turn=("<|role_end|>",),
        attention=blocks_from_row_start,
        edits=True,
        decoding_defaults=decoding_defaults,
        refusals={
            "tp_plan": "its queries, keys and values are split while loading, which is done on whole weights only; use "
            "device_map=auto, or several processes with a copy each"
        },
    )


# The defaults of each release's `generate`; where no name tells them apart, 2.0's, and editing can be asked for.
register_family(llada2("llada2", None, {"steps_per_block": 32, "confidence_threshold": 0.95}))
register_family(
    llada2(
        "llada21",
        r"llada[-_.]?2[-_.]?1",
        {"confidence_threshold": 0.95, "editing_threshold": 0.9, "max_post_steps": 16},
    )
)
