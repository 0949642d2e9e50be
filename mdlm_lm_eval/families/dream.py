"""Dream and DiffuCoder (`model_type` Dream): a Qwen2 with bidirectional attention and shifted logits.

After Dream's published modelling code (Ye et al., 2025, arXiv:2508.15487).
"""

from functools import partial
from typing import Any

from transformers import AutoTokenizer, Qwen2Config, Qwen2Tokenizer

from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.families.config_mapping import same_keys


def tokenizer_class(class_name: str | None) -> Any:
    """Qwen2's tokenizer for the remote classes, which are its byte-level BPE with added tokens."""
    return Qwen2Tokenizer if class_name in ("DreamTokenizer", "DreamTokenizerFast") else AutoTokenizer


register_family(
    Family(
        name="dream",
        model_types=("Dream",),
        native_config=partial(same_keys, "Dream", Qwen2Config, architectures=["Qwen2ForCausalLM"]),
        tokenizer_class=tokenizer_class,
        shift=lambda _config: True,  # predicts the next token, as Qwen2 before training
        end_of_turn=("<|im_end|>", "<|dlm_pad|>"),  # DiffuCoder fills its canvas with the latter after an answer
    )
)
