"""SDAR (`model_type` sdar, sdar_moe): block diffusion on a Qwen3 or Qwen3-MoE, under their own names.

After its published modelling code (Cheng et al., 2025, arXiv:2510.06303). The mixture of experts has Qwen3-MoE's keys,
weight names and routing, as the inference engines that serve it read them; no reference output of it was at hand.
"""

import re
from pathlib import PurePath
from typing import Any

from transformers import Qwen3Config, Qwen3MoeConfig

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.loading.experts import expert_weight_names
from mdlm_lm_eval.families.loading.published import (
    blocks_from_row_start,
    published_block_length,
    require,
    same_keys,
)
from mdlm_lm_eval.families.registry import register_family

BLOCK_LENGTH = 4  # of the checkpoints whose name says none
SETTINGS: dict[str, tuple[object, ...]] = {"use_sliding_window": (False,)}
MASK_TOKEN_ID = 151669


def dense_config(published: dict[str, Any]) -> Qwen3Config:
    """Qwen3Config for an SDAR `config.json`."""
    require("SDAR", published, SETTINGS)
    return same_keys(Qwen3Config, published, architectures=["Qwen3ForCausalLM"], **tokens_and_blocks(published))


def sparse_config(published: dict[str, Any]) -> Qwen3MoeConfig:
    """Qwen3MoeConfig for an SDAR-MoE `config.json`; engines disagree on routing weights that are not normalised."""
    require("SDAR-MoE", published, SETTINGS | {"norm_topk_prob": (True,)})
    return same_keys(
        Qwen3MoeConfig,
        published,
        architectures=["Qwen3MoeForCausalLM"],
        norm_topk_prob=True,
        **tokens_and_blocks(published),
    )


def tokens_and_blocks(published: dict[str, Any]) -> dict[str, Any]:
    """Mask token and block length, which stands in the name (`SDAR-8B-Chat-b8`), in some configs, or nowhere."""
    in_name = re.search(r"-b(\d+)$", PurePath(published["name_or_path"]).name)
    key = "block_length" if "block_length" in published else "block_size"
    return {
        "mask_token_id": published.get("mask_token_id", MASK_TOKEN_ID),
        "block_length": int(in_name[1]) if in_name else published_block_length(published, key, BLOCK_LENGTH),
    }


register_family(
    Family(
        name="sdar",
        model_types=("sdar",),
        native_config=dense_config,
        attention=blocks_from_row_start,
        end_of_turn=("<|im_end|>",),
    )
)
register_family(
    Family(
        name="sdar_moe",
        model_types=("sdar_moe",),
        native_config=sparse_config,
        expert_weight_names=expert_weight_names,
        attention=blocks_from_row_start,
        end_of_turn=("<|im_end|>",),
    )
)
