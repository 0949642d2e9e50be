"""SDAR (`model_type` sdar, sdar_moe): block diffusion on a Qwen3 or Qwen3-MoE, under their own names.

After its published modelling code (Cheng et al., 2025, arXiv:2510.06303). The mixture of experts has Qwen3-MoE's keys,
weight names and routing in the inference engines that serve it; we had no reference output of it.
"""

import re
from pathlib import PurePath
from typing import Any

from transformers import Qwen3Config, Qwen3MoeConfig

from mdlm_lm_eval.families import Family, blocks_from_row_start, register_family
from mdlm_lm_eval.families.config_mapping import same_keys

BLOCK_LENGTH = 4  # of checkpoints without a block length in their name
MASK_TOKEN_ID = 151669
# Keys of training, and `block_size`, which is mapped.
UNUSED = (
    "block_size debug ep_size fuse_cross_entropy micro_forward skip_checkpoint use_deepep sliding_window "
    "max_window_layers layer_types"
)
# Inference engines disagree on routing weights that are not normalised.
SETTINGS: dict[str, tuple[object, ...]] = {"use_sliding_window": (False,), "norm_topk_prob": (True,)}


def native_config(published: dict[str, Any]) -> Qwen3Config | Qwen3MoeConfig:
    """The config of a Qwen3 or Qwen3-MoE for an SDAR `config.json`.

    The name (`SDAR-8B-Chat-b8`) or the config may state the block length.
    """
    is_sparse = published["model_type"] == "sdar_moe"
    in_name = re.search(r"-b(\d+)$", PurePath(published["name_or_path"]).name)
    in_config = published.get("block_length") or published.get("block_size") or BLOCK_LENGTH
    return same_keys(
        "SDAR",
        Qwen3MoeConfig if is_sparse else Qwen3Config,
        published,
        UNUSED,
        SETTINGS,
        architectures=["Qwen3MoeForCausalLM" if is_sparse else "Qwen3ForCausalLM"],
        mask_token_id=published.get("mask_token_id", MASK_TOKEN_ID),
        block_length=int(in_name[1]) if in_name else in_config,
        **({"norm_topk_prob": True} if is_sparse else {}),
    )


for _name in ("sdar", "sdar_moe"):
    register_family(
        Family(
            name=_name,
            model_types=(_name,),
            native_config=native_config,
            attention=blocks_from_row_start,
            end_of_turn=("<|im_end|>",),
        )
    )
