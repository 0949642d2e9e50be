"""A model family in one file: checkpoints that are a Llama with bidirectional attention, under names of their own.

Load it with `plugins=family.py`, import it before loading, or let a package name it in its pyproject.toml:

    [project.entry-points."mdlm_lm_eval.family"]
    acme = "acme.family"
"""

from typing import Any

from transformers import LlamaConfig

from mdlm_lm_eval.families import Family
from mdlm_lm_eval.registry import register


def native_config(published: dict[str, Any]) -> LlamaConfig:
    """The published `config.json` in Llama's terms."""
    return LlamaConfig(
        vocab_size=published["vocabulary"],
        hidden_size=published["width"],
        intermediate_size=4 * published["width"],
        num_hidden_layers=published["depth"],
        num_attention_heads=published["heads"],
        mask_token_id=published["mask_token_id"],
    )


register(
    name="acme",
    family=Family(
        name="acme",
        model_types=("acme-diffusion",),
        native_config=native_config,
        weight_names={r"^trunk\.": "model.", r"^head\.": "lm_head."},
        end_of_turn=("<|acme_end|>",),
        decoding_defaults={"steps": 32},
    ),
)
