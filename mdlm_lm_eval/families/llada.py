"""LLaDA (`model_type` llada): a Llama with the config keys and module names of OLMo.

Mapping after LLaDA's published modelling code (Nie et al., 2025, arXiv:2502.09992).
"""

from typing import Any

from transformers import LlamaConfig

from mdlm_lm_eval.families import Family, register_family, tokenizer_of_file
from mdlm_lm_eval.families.config_mapping import plain_rotary, require
from mdlm_lm_eval.options import OptionError

# Settings of the modelling code, with the values that make it a Llama. Others must be off.
LLAMA_SETTINGS: dict[str, tuple[object, ...]] = {
    "rope": (True,),
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "activation_type": ("silu",),
    "block_group_size": (1,),
}
# Keys that are mapped below, and those that change no logits.
OTHER_KEYS = (
    "d_model n_layers n_heads n_kv_heads multi_query_attention mlp_hidden_size mlp_ratio embedding_size vocab_size "
    "max_sequence_length rms_norm_eps rope_theta include_bias include_qkv_bias weight_tying bos_token_id eos_token_id "
    "pad_token_id alibi_bias_max attention_dropout attention_layer_norm_with_affine embedding_dropout flash_attention "
    "init_cutoff_factor init_device init_fn init_std precision residual_dropout rope_full_precision rope_parameters "
    "flash_attn_varlen"
)

# Checkpoint names (regular expressions) -> Llama's. `ff_out` is a block's down projection and also the output head.
WEIGHT_NAMES = {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
    r"^model\.transformer\.blocks\.(\d+)\.attn_norm\.": r"model.layers.\1.input_layernorm.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
    r"^model\.transformer\.blocks\.(\d+)\.q_proj\.": r"model.layers.\1.self_attn.q_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.k_proj\.": r"model.layers.\1.self_attn.k_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.v_proj\.": r"model.layers.\1.self_attn.v_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.attn_out\.": r"model.layers.\1.self_attn.o_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.up_proj\.": r"model.layers.\1.mlp.up_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_out\.": r"model.layers.\1.mlp.down_proj.",
}


def native_config(published: dict[str, Any]) -> LlamaConfig:
    """LlamaConfig for a LLaDA `config.json`; OptionError for a setting without Llama equivalent."""
    require("LLaDA", published, LLAMA_SETTINGS, OTHER_KEYS)
    if published.get("include_qkv_bias", False) != published.get("include_bias", False):
        raise OptionError("LLaDA config: include_qkv_bias and include_bias differ, which is not supported")
    n_heads = published["n_heads"]
    n_kv_heads = published.get("n_kv_heads")
    if n_kv_heads is None:
        n_kv_heads = 1 if published.get("multi_query_attention") else n_heads
    mlp_hidden_size = published.get("mlp_hidden_size")
    return LlamaConfig(
        # The embedding has more rows than the tokenizer has tokens; `embedding_size` is the number of rows.
        vocab_size=published.get("embedding_size") or published["vocab_size"],
        hidden_size=published["d_model"],
        intermediate_size=mlp_hidden_size or published["mlp_ratio"] * published["d_model"],
        num_hidden_layers=published["n_layers"],
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        max_position_embeddings=published["max_sequence_length"],
        rms_norm_eps=published.get("rms_norm_eps", 1e-5),
        rope_parameters=plain_rotary("LLaDA", published, rope_theta=10000.0),
        attention_bias=bool(published.get("include_qkv_bias", False)),
        mlp_bias=bool(published.get("include_bias", False)),
        tie_word_embeddings=bool(published.get("weight_tying", False)),
        bos_token_id=published.get("bos_token_id"),
        eos_token_id=published.get("eos_token_id"),
        pad_token_id=published.get("pad_token_id"),
        dtype=published.get("dtype", published.get("torch_dtype")),
        quantization_config=published.get("quantization_config"),
        architectures=["LlamaForCausalLM"],
        mask_token_id=published.get("mask_token_id", 126336),
    )


register_family(
    Family(
        name="llada",
        model_types=("llada",),
        native_config=native_config,
        weight_names=WEIGHT_NAMES,
        tokenizer_class=tokenizer_of_file,
        end_of_turn=("<|eot_id|>",),
    )
)
