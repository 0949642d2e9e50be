"""The built-in model's network and its loss, under full and under block-causal attention."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.masking_utils import sdpa_mask

from training.batches import Batch


def build_model(tokenizer: PreTrainedTokenizerFast, block_length: int | None, seed: int) -> LlamaForCausalLM:
    """A small Llama with random weights and bidirectional attention, over the whole text or within blocks."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=256,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
        attn_implementation="plain_sdpa",
    )
    config.is_causal = False
    config.mask_token_id = tokenizer.mask_token_id
    if block_length is not None:
        config.block_length = block_length
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def _plain_sdpa(
    _: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None = None, **__: Any
) -> tuple[Tensor, None]:
    """Attention under any mask, or none: queries, keys and values [B, heads, T, D] -> [B, T, heads, D]."""
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("plain_sdpa", _plain_sdpa)
AttentionMaskInterface.register("plain_sdpa", sdpa_mask)


def block_causal_mask(length: int, block_length: int) -> Tensor:
    """A mask [1, 1, T, T]: a query sees the keys of its own block and of those before."""
    block = torch.arange(length) // block_length
    return (block <= block[:, None])[None, None]


def _clean_and_noisy_mask(length: int, block_length: int) -> Tensor:
    """A mask [1, 1, 2 T, 2 T] for a clean copy followed by a noisy one (block diffusion, arXiv 2503.09573, section 3).

    Clean tokens see clean tokens block-causally. Noisy tokens see the clean blocks before their own block, and this
    block's noisy tokens.
    """
    block = torch.arange(length) // block_length
    before, same = block < block[:, None], block == block[:, None]
    clean = torch.cat([before | same, torch.zeros_like(same)], dim=1)
    noisy = torch.cat([before, same], dim=1)
    return torch.cat([clean, noisy])[None, None]


def logits_at_masks(model: LlamaForCausalLM, batch: Batch, block_length: int | None) -> Tensor:
    """Logits [N, V] of a batch's masked tokens, under full attention or in blocks."""
    length, device = batch.noisy.shape[1], batch.noisy.device
    inputs = {"input_ids": batch.noisy}
    if batch.hidden:
        itself = torch.eye(length, dtype=torch.bool, device=device)
        inputs["attention_mask"] = (batch.weights[:, None, None] == 0) | itself
    if block_length is not None:
        inputs = {
            "input_ids": torch.cat([batch.clean, batch.noisy], dim=1),
            "position_ids": torch.arange(length, device=device).repeat(2)[None],
            "attention_mask": _clean_and_noisy_mask(length, block_length).to(device),
        }
    hidden = model.model(**inputs).last_hidden_state[:, -length:]  # [B, T, H]
    return model.lm_head(hidden[batch.weights > 0])


def masked_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Weighted cross-entropy of a batch's masked tokens, given their logits [N, V]."""
    masked = batch.weights > 0
    losses = F.cross_entropy(logits, batch.clean[masked], reduction="none")  # [N]
    return (losses * batch.weights[masked]).sum()
