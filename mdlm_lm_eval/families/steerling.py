"""Steerling-8B (`model_type` steerling): block diffusion on an EXAONE 4 whose projections are clipped.

Mapping after its published code (Guide Labs, `steerling` 0.2.0). Its concept heads split hidden states into concepts
and a correction that restores the sum, so that they change no logits unless a concept is steered. Its own sampler fills
64 masks at a time from the prompt's end on, across the blocks of attention, and never writes an end of text.
"""

from typing import Any

from transformers import Exaone4Config, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.core_model_loading import Split, WeightConverter
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mdlm_lm_eval.families import Family, blocks, register_family
from mdlm_lm_eval.families.config_mapping import plain_rotary, require

# Settings of the published code, with the values that make it an EXAONE 4 whose concept heads change nothing.
SETTINGS: dict[str, tuple[object, ...]] = {
    "use_rms_norm": (True,),
    "norm_order": ("post",),
    "use_qk_norm": (True,),
    "use_rope": (True,),
    "mlp_type": ("swiglu",),
    "use_epsilon_correction": (True,),
}
# Keys that are mapped below, and those of the concept heads, of steering and of precision.
OTHER_KEYS = (
    "n_layers n_head n_embd n_kv_heads block_size diff_block_size norm_eps rope_base clip_qkv mlp_ratio "
    "intermediate_size weight_sharing activation rope_full_precision interpretable n_concepts n_unknown_concepts "
    "concept_dim use_attention_known use_attention_unknown topk_known topk_known_features unknown_topk use_unknown "
    "apply_topk_to_unknown topk_on_logits factorize_unknown factorize_rank concept_block_size pad_multiple "
    "store_unknown_weights inject_layer inject_alpha endofchunk_token_id start_header_id end_header_id eot_id "
    "rope_parameters vocab_size"
)
WEIGHT_NAMES = {
    r"^transformer\.tok_emb\.": "model.embed_tokens.",
    r"^transformer\.ln_f\.": "model.norm.",
    r"^transformer\.lm_head\.": "lm_head.",
    r"^transformer\.blocks\.(\d+)\.ln_1\.": r"model.layers.\1.post_attention_layernorm.",
    r"^transformer\.blocks\.(\d+)\.ln_2\.": r"model.layers.\1.post_feedforward_layernorm.",
    r"^transformer\.blocks\.(\d+)\.attn\.q_norm\.": r"model.layers.\1.self_attn.q_norm.",
    r"^transformer\.blocks\.(\d+)\.attn\.k_norm\.": r"model.layers.\1.self_attn.k_norm.",
    r"^transformer\.blocks\.(\d+)\.attn\.c_attn\.": r"model.layers.\1.self_attn.c_attn.",
    r"^transformer\.blocks\.(\d+)\.attn\.c_proj\.": r"model.layers.\1.self_attn.o_proj.",
    r"^transformer\.blocks\.(\d+)\.mlp\.c_proj\.": r"model.layers.\1.mlp.down_proj.",
    r"^transformer\.blocks\.(\d+)\.mlp\.c_fc\.": r"model.layers.\1.mlp.c_fc.",
}

# The keys of `tokenizer_config.json` with the ids of its own special tokens.
SPECIAL_TOKENS = {
    "pad_token_id": "<|pad|>",
    "bos_token_id": "<|bos|>",
    "endofchunk_token_id": "<|endofchunk|>",
    "mask_token_id": "<|mask|>",
    "start_header_id": "<|start_header_id|>",
    "end_header_id": "<|end_header_id|>",
    "eot_id": "<|eot_id|>",
}


class SteerlingTokenizer:
    """tiktoken's cl100k_base with special tokens after it. The checkpoint has no file of it."""

    @staticmethod
    def from_pretrained(pretrained: str, **source: Any) -> PreTrainedTokenizerFast:
        """The tokenizer with the special tokens of the checkpoint's settings."""
        import tiktoken  # no dependency of the package, as other families do without

        settings, encoding = get_tokenizer_config(pretrained, **source), tiktoken.get_encoding("cl100k_base")
        names = {number: name for name, number in encoding._special_tokens.items()}
        names |= {settings[key]: name for key, name in SPECIAL_TOKENS.items() if key in settings}
        first = len(encoding._mergeable_ranks)
        special = [names.get(number, f"<|unused_{number}|>") for number in range(first, max(names) + 1)]
        # The converter's pattern is the same; tiktoken's possessive quantifiers mean something else to it.
        converter = TikTokenConverter(extra_special_tokens=special)
        converter.load_tiktoken_bpe = lambda _file: encoding._mergeable_ranks
        return PreTrainedTokenizerFast(
            tokenizer_object=converter.converted(),
            pad_token="<|pad|>",
            bos_token="<|bos|>",
            eos_token="<|endoftext|>",
            mask_token="<|mask|>",
            chat_template=settings.get("chat_template"),
            clean_up_tokenization_spaces=False,
        )


def native_config(published: dict[str, Any]) -> Exaone4Config:
    """Exaone4Config for a Steerling `config.json`; OptionError for a setting without equivalent."""
    require("Steerling", published, SETTINGS, OTHER_KEYS)
    n_heads, width = published["n_head"], published["n_embd"]
    return Exaone4Config(
        vocab_size=published["vocab_size"],
        hidden_size=width,
        intermediate_size=published.get("intermediate_size") or published["mlp_ratio"] * width,
        num_hidden_layers=published["n_layers"],
        num_attention_heads=n_heads,
        num_key_value_heads=published.get("n_kv_heads") or n_heads,
        head_dim=width // n_heads,
        max_position_embeddings=published["block_size"],
        rms_norm_eps=published["norm_eps"],
        rope_parameters=plain_rotary("Steerling", published | {"rope_theta": published["rope_base"]}, "rope_theta"),
        tie_word_embeddings=bool(published["weight_sharing"]),
        sliding_window=None,
        layer_types=["full_attention"] * published["n_layers"],
        bos_token_id=published.get("bos_token_id"),
        eos_token_id=published.get("eos_token_id"),
        pad_token_id=published.get("pad_token_id"),
        dtype=published.get("dtype", published.get("torch_dtype")),
        quantization_config=published.get("quantization_config"),
        architectures=["Exaone4ForCausalLM"],
        mask_token_id=published["mask_token_id"],
        block_length=published["diff_block_size"],
        clip_qkv=published.get("clip_qkv"),
    )


def weight_conversions() -> list[Any]:
    """Splits the published matrices of queries, keys and values, and of the two inputs of an MLP."""
    projections = [f"self_attn.{name}_proj" for name in "qkv"]
    return [
        WeightConverter("self_attn.c_attn", projections, operations=[Split(dim=0)]),
        WeightConverter("mlp.c_fc", ["mlp.up_proj", "mlp.gate_proj"], operations=[Split(dim=0)]),
    ]


def clip_projections(model: Any) -> None:
    """Clips queries, keys and values, as its code does before it normalises them."""
    most = model.config.to_dict().get("clip_qkv")
    for name, module in model.named_modules():
        if most is not None and name.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(lambda _module, _inputs, output: output.clamp(-most, most))


register_family(
    Family(
        name="steerling",
        model_types=("steerling",),
        native_config=native_config,
        weight_names=WEIGHT_NAMES,
        weight_conversions=weight_conversions,
        adapt=clip_projections,
        tokenizer_class=lambda _class_name: SteerlingTokenizer,
        unused_weights=("known_head.", "unknown_head."),
        attention=blocks(),
        end_of_turn=("<|eot_id|>",),
        decoding_defaults={"suppress_eos": True},
    )
)
