"""A2D (`model_type` a2d-qwen3, a2d-qwen2, a2d-llama): autoregressive models that dllm trained on as diffusion models.

Either by block diffusion (BD3LM, Arriola et al., 2025, arXiv:2503.09573) or with full attention (MDLM, Sahoo et al.,
2024, arXiv:2406.07524). Their configs are the same; their names tell (`Qwen3-0.6B-diffusion-bd3lm-v0.1`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.loading.published import block_length_of, require, same_keys
from mdlm_lm_eval.families.registry import register_family
from mdlm_lm_eval.model.attention import AttentionPattern

BLOCK_LENGTH = 32  # of dllm's training and evaluation; no config says it


def native_config(
    config_class: type[PretrainedConfig], architecture: str, published: dict[str, Any]
) -> PretrainedConfig:
    """The config of the autoregressive model that it began as."""
    require("A2D", published, {"use_sliding_window": (False,)})
    block_length = published.get("block_length", BLOCK_LENGTH)
    return same_keys(config_class, published, architectures=[architecture], block_length=block_length)


def attention(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Blocks from the end of the prompt."""
    return AttentionPattern(block_length_of(config, block_length), blocks_from="prompt_end")


def register(base: str, native_config: Callable[[dict[str, Any]], PretrainedConfig], end_of_turn: str) -> None:
    """The block diffusion and the full-attention variant of one base model."""
    name = f"a2d-{base}"
    register_family(
        Family(
            name=name,
            model_types=(name,),
            published_as="bd3lm",
            native_config=native_config,
            attention=attention,
            end_of_turn=(end_of_turn,),
            decoding_defaults={"schedule": "bd3lm"},
        )
    )
    register_family(
        Family(
            name=f"{name}-mdlm",
            model_types=(name,),
            published_as="mdlm(?![-_]lm)",
            native_config=native_config,
            end_of_turn=(end_of_turn,),
        )
    )


register("qwen3", partial(native_config, Qwen3Config, "Qwen3ForCausalLM"), "<|im_end|>")
register("qwen2", partial(native_config, Qwen2Config, "Qwen2ForCausalLM"), "<|im_end|>")
register("llama", partial(native_config, LlamaConfig, "LlamaForCausalLM"), "<|eot_id|>")
