"""Fast-dLLM v2 (`model_type` Fast_dLLM_Qwen): block diffusion on a Qwen2, whose logits are shifted by one.

After its published modelling code (Wu et al., 2025, arXiv:2509.26328).
"""

from typing import Any

from transformers import PretrainedConfig, Qwen2Config

from mdlm_lm_eval.families.attention import AttentionPattern
from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.loading.published import block_length_of, require, same_keys
from mdlm_lm_eval.families.registry import register_family


def native_config(published: dict[str, Any]) -> Qwen2Config:
    """Qwen2Config for a Fast-dLLM v2 `config.json`."""
    require("Fast-dLLM v2", published, {"use_sliding_window": (False,)})
    return same_keys(
        Qwen2Config,
        published,
        architectures=["Qwen2ForCausalLM"],
        mask_token_id=published.get("mask_token_id", 151665),
        block_length=published["bd_size"],
    )


def shift(_config: PretrainedConfig) -> bool:
    """The output at a position predicts the next token, as in the autoregressive model that it began as."""
    return True


def attention(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Blocks from the row's first token."""
    return AttentionPattern(block_length_of(config, block_length))


register_family(
    Family(
        name="fast_dllm_v2",
        model_types=("Fast_dLLM_Qwen",),
        native_config=native_config,
        attention=attention,
        shift=shift,
        end_of_turn=("<|im_end|>",),
        decoding_defaults={"small_block_length": 8, "confidence_threshold": 0.9},  # model card and evaluation
    )
)
