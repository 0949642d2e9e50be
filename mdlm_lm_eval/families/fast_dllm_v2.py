"""Fast-dLLM v2 (`model_type` Fast_dLLM_Qwen): block diffusion on a Qwen2, with shifted logits.

After its published modelling code (Wu et al., 2025, arXiv:2509.26328).
"""

from typing import Any

from transformers import Qwen2Config

from mdlm_lm_eval.families import Family, blocks, register_family
from mdlm_lm_eval.families.config_mapping import same_keys


def native_config(published: dict[str, Any]) -> Qwen2Config:
    """Qwen2Config for a Fast-dLLM v2 `config.json`."""
    return same_keys(
        "Fast-dLLM v2",
        Qwen2Config,
        published,
        unused="bd_size conplemenrary_mask",  # a key of training, with this spelling
        values={"use_sliding_window": (False,)},
        defaults={"mask_token_id": 151665},
        architectures=["Qwen2ForCausalLM"],
        block_length=published["bd_size"],
    )


register_family(
    Family(
        name="fast_dllm_v2",
        model_types=("Fast_dLLM_Qwen",),
        native_config=native_config,
        attention=blocks(),
        shift=lambda _config: True,  # predicts the next token, as Qwen2 before training
        end_of_turn=("<|im_end|>",),
        decoding_defaults={"small_block_length": 8, "confidence_threshold": 0.9},  # model card and evaluation
    )
)
