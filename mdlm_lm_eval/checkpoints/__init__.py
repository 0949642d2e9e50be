# ruff: noqa: F401 - names that other modules import from here
"""Loads a checkpoint of any family: config, tokenizer, weights, adapter and device placement."""

from mdlm_lm_eval.checkpoints.adapters import adapter_config, load_adapter, without_adapter
from mdlm_lm_eval.checkpoints.config import (
    attention_of,
    check_config,
    check_options,
    check_sees_all,
    load_config,
    resolve_mask_token_id,
)
from mdlm_lm_eval.checkpoints.loading import (
    context_length,
    denoiser_of,
    device_placement,
    load,
    load_denoiser,
    reserved_positions,
)
from mdlm_lm_eval.checkpoints.tokenizers import (
    check_tokenizer,
    end_of_turn_ids,
    ending_templates,
    eos_ids,
    ids_after_answers,
    load_tokenizer,
)
from mdlm_lm_eval.checkpoints.weights import (
    checkpoint_digest,
    digests_of_folders,
    files_digest,
    load_model,
    load_network,
)
from mdlm_lm_eval.families import family_of, own_decoder, refuse_other_decoders
