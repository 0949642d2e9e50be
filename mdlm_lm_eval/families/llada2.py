"""LLaDA2.0 and LLaDA2.1 (`model_type` llada2_moe): block diffusion on a GLM-4 mixture of experts.

Mapping after their published modelling code (Bie et al., 2025, arXiv:2512.15745). Both are the same network; 2.1 is
trained to change tokens that it has written, and decodes so.
"""

from collections.abc import Mapping
from typing import Any

from transformers import Glm4MoeConfig
from transformers.core_model_loading import Split, WeightConverter

from mdlm_lm_eval.families import Family, blocks, register_family, tokenizer_of_file
from mdlm_lm_eval.families.config_mapping import plain_rotary, same_keys

BLOCK_LENGTH = 32  # in training and all published decoding settings; configs do not state it

# Settings that the published modelling code reads, with the values that make it a GLM-4-MoE.
GLM4_MOE_SETTINGS: dict[str, tuple[object, ...]] = {
    "score_function": ("sigmoid",),
    "moe_router_enable_expert_bias": (True,),
    "norm_topk_prob": (True,),
    "use_bias": (False,),
    "use_rmsnorm": (True,),
    "use_sliding_window": (False,),  # then nothing reads the sliding_window beside it
    "using_split_qkv_in_self_attention": (False,),
    "norm_head": (False,),
    "rope_scaling": (None,),
    "hidden_act": ("silu",),
    "router_dtype": ("fp32", None),
}
# Keys that are mapped below, and those that change no logits.
OTHER_KEYS = (
    "num_experts num_shared_experts use_qkv_bias partial_rotary_factor rotary_dim embedding_dropout "
    "output_dropout max_window_layers sliding_window output_router_logits"
)

# Checkpoint names (regular expressions) -> GLM-4-MoE's; the rest are the same.
WEIGHT_NAMES = {
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"^model\.layers\.(\d+)\.attention\.dense\.": r"model.layers.\1.self_attn.o_proj.",
    r"^model\.layers\.(\d+)\.attention\.query_layernorm\.": r"model.layers.\1.self_attn.q_norm.",
    r"^model\.layers\.(\d+)\.attention\.key_layernorm\.": r"model.layers.\1.self_attn.k_norm.",
    r"^model\.layers\.(\d+)\.mlp\.gate\.expert_bias$": r"model.layers.\1.mlp.gate.e_score_correction_bias",
}


def native_config(published: dict[str, Any]) -> Glm4MoeConfig:
    """Glm4MoeConfig for a LLaDA2 `config.json`; OptionError for a setting without equivalent."""
    return same_keys(
        "LLaDA2",
        Glm4MoeConfig,
        published,
        unused=OTHER_KEYS,
        values=GLM4_MOE_SETTINGS,
        defaults={"mask_token_id": 156895},
        blocks=(BLOCK_LENGTH, "block_length"),
        n_routed_experts=published["num_experts"],
        n_shared_experts=published["num_shared_experts"],
        attention_bias=bool(published.get("use_qkv_bias", False)),
        use_qk_norm=bool(published.get("use_qk_norm", True)),
        norm_topk_prob=True,
        num_nextn_predict_layers=0,
        rope_parameters=plain_rotary("LLaDA2", published, "rope_theta", "partial_rotary_factor"),
        eos_token_id=published.get("eos_token_id", published.get("pad_token_id")),
        architectures=["Glm4MoeForCausalLM"],
    )


def weight_conversions() -> list[Any]:
    """Splits the published matrix of queries, keys and values, which are separate in GLM-4-MoE."""
    projections = [f"self_attn.{name}_proj" for name in "qkv"]
    return [WeightConverter("attention.query_key_value", projections, operations=[Split(dim=0)])]


def llada2(name: str, published_as: str | None, decoding_defaults: Mapping[str, object]) -> Family:
    """The family of a release, with the defaults of its `generate`."""
    return Family(
        name=name,
        model_types=("llada2_moe",),
        published_as=published_as,
        native_config=native_config,
        weight_names=WEIGHT_NAMES,
        weight_conversions=weight_conversions,
        tokenizer_class=tokenizer_of_file,
        end_of_turn=("<|role_end|>",),
        attention=blocks(),
        edits=True,
        decoding_defaults=decoding_defaults,
    )


# Their configs are the same, and their names differ: LLaDA2.0-mini, LLaDA2.1-flash. `llada-2-1k` is neither.
_NAME = r"(?<![a-z])llada[-_]?2[._-]?{}(?![a-z0-9])"
_AS_LLADA20 = {"steps_per_block": 32, "schedule": "llada2", "confidence_threshold": 0.95}
_AS_LLADA21 = {"confidence_threshold": 0.95, "editing_threshold": 0.9, "max_post_steps": 16}
register_family(llada2("llada2", _NAME.format(0), _AS_LLADA20))
register_family(llada2("llada21", _NAME.format(1), _AS_LLADA21))
