"""Decoders that transformers ships: `is_causal: false` in `config.json` says that attention is bidirectional.

A `block_length` beside it says that attention is block-causal, in blocks of so many tokens.
"""

from transformers import PretrainedConfig

from mdlm_lm_eval.families import Family, blocks_from_row_start, register_family
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern

# Those whose masks become bidirectional with is_causal=False in the config.
BIDIRECTIONAL = ("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>")


def check(config: PretrainedConfig) -> str | None:
    """Complains of an autoregressive model."""
    if config.to_dict().get("is_causal") is False:
        return None
    return (
        f"its config does not say is_causal=false, so this {config.model_type} is an autoregressive model and no "
        "masked diffusion model; use --model hf for it"
    )


def check_of_others(config: PretrainedConfig) -> str:
    """Complains of every model of a class whose masks do not become bidirectional."""
    return check(config) or (
        f"model_type={config.model_type!r} with is_causal=false must be one of {', '.join(BIDIRECTIONAL)}"
    )


def attention(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Full, or in blocks where the config says so; the option only says in which blocks full attention is decoded."""
    is_full = config.to_dict().get("block_length") is None
    return FULL_ATTENTION if is_full else blocks_from_row_start(config, block_length)


for _name in BIDIRECTIONAL:
    register_family(Family(name=_name, model_types=(_name,), check=check, attention=attention, end_of_turn=END_OF_TURN))
register_family(Family(name="autoregressive", check=check_of_others))
