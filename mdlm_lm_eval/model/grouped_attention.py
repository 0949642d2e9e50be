"""Attention of grouped queries without copies of keys and values."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_grouped"


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, None]:
    """Attention of queries [B, H, Q, D] to fewer heads of keys and values, which transformers' `sdpa` would copy.

    The queries of a group are put into one head, one after the other: any kernel gives the same numbers, and no key is
    copied. If the queries of a row see different keys, the mask is repeated instead, provided that this copies less.
    In all other cases, transformers' own function is called.
    """
    (batch, heads, n_queries, size), groups = query.shape, key.shape[1]
    is_causal = arguments.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    same_keys = attention_mask is None or attention_mask.shape[1:3] == (1, 1)
    same_heads = attention_mask is None or attention_mask.shape[1] == 1
    if is_causal or heads == groups or not (same_keys or (same_heads and n_queries <= 2 * groups * size)):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
    if attention_mask is not None and not same_keys:
        attention_mask = attention_mask.repeat(1, 1, heads // groups, 1)
    output = scaled_dot_product_attention(
        query.reshape(batch, groups, heads // groups * n_queries, size),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=arguments.get("dropout", 0.0),
        scale=arguments.get("scaling"),
    )
    return output.reshape(batch, heads, n_queries, value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def use_grouped_attention(config: PreTrainedConfig) -> None:
    """Makes a transformers model with `sdpa` and fewer heads of keys than of queries use `grouped_attention`.

    Layers of one model may have different numbers of heads (DiffusionGemma), so each layer's number is read.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    is_grouped = heads is not None and any(
        (getattr(layer, "num_key_value_heads", None) or heads) < heads for layer in text.per_layer_config
    )
    is_remote = config.to_dict().get("diffusion_family") == "remote"
    if is_grouped and not is_remote and config._attn_implementation == "sdpa":
        config._attn_implementation = NAME
