"""Dream (`model_type` Dream): a Qwen2 with bidirectional attention, whose logits are shifted by one.

After Dream's published modelling code (Ye et al., 2025, arXiv:2508.15487).
"""

from typing import Any

from transformers import Qwen2Config


def native_config(published: dict[str, Any]) -> Qwen2Config:
    """Qwen2Config for a Dream `config.json`, whose keys are Qwen2's."""
    settings = {k: v for k, v in published.items() if k not in {"model_type", "auto_map", "architectures"}}
    return Qwen2Config(
        **settings | {"architectures": ["Qwen2ForCausalLM"], "is_causal": False, "diffusion_family": "dream"}
    )
