"""SDAR (`model_type` sdar, sdar_moe): block diffusion on a Qwen3 or Qwen3-MoE, under their own names.

After its published modelling code (Cheng et al., 2025, arXiv:2510.06303). The mixture of experts has Qwen3-MoE's keys,
weight names and routing in the inference engines that serve it; we had no reference output of it.
"""

import logging
import re
from functools import cache
from pathlib import PurePath
from typing import Any

from transformers import PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from mdlm_lm_eval.families import Family, register_family
from mdlm_lm_eval.families.config_mapping import FAMILY_DEFAULT, block_length_of, same_keys
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.results.names import hub_id

logger = logging.getLogger(__name__)
BLOCK_LENGTH = 4  # of checkpoints without a block length in their name
# Keys of training, and `block_size`, which is mapped.
UNUSED = (
    "block_size debug ep_size fuse_cross_entropy micro_forward skip_checkpoint use_deepep sliding_window "
    "max_window_layers layer_types"
)
# Inference engines disagree on routing weights that are not normalised.
SETTINGS: dict[str, tuple[object, ...]] = {"use_sliding_window": (False,), "norm_topk_prob": (True,)}


def native_config(published: dict[str, Any]) -> Qwen3Config | Qwen3MoeConfig:
    """The config of a Qwen3 or Qwen3-MoE for an SDAR `config.json`.

    The block length is that of the name (`SDAR-8B-Chat-b8`), else that of the config.
    """
    is_sparse = published["model_type"] == "sdar_moe"
    blocks = block_length_of(published, BLOCK_LENGTH, "block_size")
    path = PurePath(hub_id(published["name_or_path"]))
    name = path.parent.name if re.fullmatch(r"checkpoint-\d+", path.name) else path.name
    if in_name := re.search(r"[-_]b(\d+)(?![a-zA-Z0-9])", name):
        length, source = int(in_name[1]), f"the name {name}"
        if blocks["block_length_from"] != FAMILY_DEFAULT and blocks["block_length"] != length:
            source += f", not config.json, which says {blocks['block_length']}"
        blocks = {"block_length": length, "block_length_from": source}
    experts: dict[str, Any] = {"norm_topk_prob": True} if is_sparse else {}
    return same_keys(
        "SDAR",
        Qwen3MoeConfig if is_sparse else Qwen3Config,
        published,
        UNUSED,
        SETTINGS,
        defaults={"mask_token_id": 151669},
        architectures=["Qwen3MoeForCausalLM" if is_sparse else "Qwen3ForCausalLM"],
        **blocks,
        **experts,
    )


def attention(config: PretrainedConfig, block_length: int | None) -> AttentionPattern:
    """Block-causal attention. Warns if the checkpoint's block length is unknown or stated twice, and no option sets it.

    Checkpoints with other block lengths have the same config, and the wrong one gives worse answers.
    """
    source = config.to_dict().get("block_length_from", "config.json")
    if block_length is None and (source == FAMILY_DEFAULT or "not config.json" in source):
        _warn_of_length(config.name_or_path, config.block_length, source)
    return AttentionPattern(block_length or config.block_length)


@cache
def _warn_of_length(pretrained: str, length: int, source: str) -> None:
    sentence = "pretrained=%s: blocks of %d tokens by %s; block_length= sets the length"
    logger.warning(sentence, pretrained, length, source)


for _name in ("sdar", "sdar_moe"):
    register_family(
        Family(
            name=_name,
            model_types=(_name,),
            native_config=native_config,
            attention=attention,
            end_of_turn=("<|im_end|>",),
        )
    )
