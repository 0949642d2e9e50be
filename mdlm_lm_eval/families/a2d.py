"""A2D (`model_type` a2d-qwen3, a2d-qwen2, a2d-llama): autoregressive models that dLLM trained further by diffusion.

They use block diffusion (BD3LM, Arriola et al., 2025, arXiv:2503.09573) or full attention (MDLM, Sahoo et al., 2024,
arXiv:2406.07524). Both have the same config; the name says which it is (`Qwen3-0.6B-diffusion-bd3lm-v0.1`).
"""

from functools import partial
from typing import Any

from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from mdlm_lm_eval.families import Family, blocks, register_family
from mdlm_lm_eval.families.config_mapping import same_keys

BLOCK_LENGTH = 32  # in dLLM's training and evaluation; configs do not state it
# Base model -> config, architecture, end of turn.
BASES = {
    "qwen3": (Qwen3Config, "Qwen3ForCausalLM", "<|im_end|>"),
    "qwen2": (Qwen2Config, "Qwen2ForCausalLM", "<|im_end|>"),
    "llama": (LlamaConfig, "LlamaForCausalLM", "<|eot_id|>"),
}


for _base, (_config_class, _architecture, _end_of_turn) in BASES.items():
    _shared: dict[str, Any] = {
        "model_types": (f"a2d-{_base}",),
        "native_config": partial(
            same_keys,
            "A2D",
            _config_class,
            unused="sliding_window max_window_layers layer_types",
            values={"use_sliding_window": (False,)},
            blocks=(BLOCK_LENGTH, "block_length"),
            architectures=[_architecture],
        ),
        "end_of_turn": (_end_of_turn,),
    }
    _bd3lm, _mdlm = r"(?<![a-z0-9])bd3lm(?![a-z0-9])", r"(?<![a-z0-9])mdlm(?![a-z0-9]|[-_]lm)"
    _attention, _defaults = blocks(blocks_from="prompt_end"), {"schedule": "bd3lm"}
    register_family(
        Family(f"a2d-{_base}", published_as=_bd3lm, attention=_attention, decoding_defaults=_defaults, **_shared)
    )
    register_family(Family(f"a2d-{_base}-mdlm", published_as=_mdlm, **_shared))
