"""Decoders that transformers ships: `is_causal: false` in `config.json` says that attention is bidirectional.

A `block_length` beside it says that attention is block-causal, in blocks of so many tokens.
"""

from transformers import PretrainedConfig

from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern

# Model types with bidirectional attention if the config has is_causal=False.
BIDIRECTIONAL = ("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>")


def check(config: PretrainedConfig) -> str | None:
    """The reason why a config is an autoregressive model's, None if it is not."""
    if config.to_dict().get("is_causal") is False:
        return None
    return (
        f"its config does not say is_causal=false, so this {config.model_type} is an autoregressive model and no "
        "masked diffusion model; use --model hf for it"
    )


def check_of_others(config: PretrainedConfig) -> str:
    """The reason why a config of any other class is refused: its attention stays causal."""
    return check(config) or (
        f"model_type={config.model_type!r} with is_causal=false must be one of {', '.join(BIDIRECTIONAL)}"
    )


def attention(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Block-causal attention if the config has `block_length`, else full attention, which ignores the option."""
    is_full = config.to_dict().get("block_length") is None
    return FULL_ATTENTION if is_full else AttentionPattern(block_length or config.block_length)


for _name in BIDIRECTIONAL:
    register_family(Family(name=_name, model_types=(_name,), check=check, attention=attention, end_of_turn=END_OF_TURN))
register_family(Family(name="autoregressive", check=check_of_others))
