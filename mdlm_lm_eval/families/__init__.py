# ruff: noqa: F401 - what this room offers to others
"""Model families, one file each, and what loads their checkpoints.

A new family is one file in this folder, or in a package of its own, that calls `register_family(Family(...))`.
"""

from mdlm_lm_eval.families.adapters import load_adapter, load_adapter_config
from mdlm_lm_eval.families.checkpoint import (
    context_length,
    files_digest,
    load_denoiser,
    load_model,
    load_skeleton,
    reserved_positions,
)
from mdlm_lm_eval.families.config import attention_of, check_config, check_options, load_config, resolve_mask_token_id
from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.families.placement import placed
from mdlm_lm_eval.families.registry import all_families, family_of, register_family
from mdlm_lm_eval.families.tokenizers import end_of_turn_ids, eos_ids, load_tokenizer
from mdlm_lm_eval.model.attention import AttentionPattern
