"""Published checkpoints -> transformers' own classes, with what must be known to denoise with them."""

from mdlm_lm_eval.checkpoints.adapters import load_adapter, load_adapter_config
from mdlm_lm_eval.checkpoints.compilation import compile_layers
from mdlm_lm_eval.checkpoints.configs import (
    check_bidirectional,
    check_guidance,
    family_of,
    load_config,
    resolve_mask_token_id,
    shifts_logits,
)
from mdlm_lm_eval.checkpoints.digest import files_digest
from mdlm_lm_eval.checkpoints.models import load_model, load_skeleton, reserved_positions
from mdlm_lm_eval.checkpoints.tokenizers import load_tokenizer

__all__ = [
    "check_bidirectional",
    "check_guidance",
    "compile_layers",
    "family_of",
    "files_digest",
    "load_adapter",
    "load_adapter_config",
    "load_config",
    "load_model",
    "load_skeleton",
    "load_tokenizer",
    "reserved_positions",
    "resolve_mask_token_id",
    "shifts_logits",
]
