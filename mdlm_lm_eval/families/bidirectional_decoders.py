"""Decoders that transformers ships, trained with bidirectional attention: `is_causal: false` in `config.json`.

A `block_length` beside it says that attention is block-causal, in blocks of so many tokens.
"""

from transformers import PretrainedConfig

from mdlm_lm_eval.families.family import Family, no_weights
from mdlm_lm_eval.families.loading.experts import expert_weight_names
from mdlm_lm_eval.families.loading.published import blocks_from_row_start
from mdlm_lm_eval.families.registry import register_family
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern

# Those whose masks become bidirectional with is_causal=False in the config.
DENSE = ("llama", "mistral", "qwen2", "qwen3")
SPARSE = ("qwen2_moe", "qwen3_moe")
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>")


def check(config: PretrainedConfig) -> str | None:
    """Complains of an autoregressive model."""
    if config.to_dict().get("is_causal") is False:
        return None
    return (
        f"its config does not say is_causal=false, so this {config.model_type} is an autoregressive model and no "
        "masked diffusion model; use --model hf for it"
    )


def attention(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Full, or in blocks where the config says so; the option only says in which blocks full attention is decoded."""
    is_full = config.to_dict().get("block_length") is None
    return FULL_ATTENTION if is_full else blocks_from_row_start(config, block_length)


for _name in (*DENSE, *SPARSE):
    register_family(
        Family(
            name=_name,
            model_types=(_name,),
            check=check,
            attention=attention,
            end_of_turn=END_OF_TURN,
            expert_weight_names=expert_weight_names if _name in SPARSE else no_weights,
        )
    )
