"""Decoding of a batch of canvases, by the loop that the model's attention and the options ask for."""

from collections.abc import Callable, Collection, Sequence

from mdlm_lm_eval.decoding.approximate import ApproximateDecoder
from mdlm_lm_eval.decoding.block_loop import decode_blocks
from mdlm_lm_eval.decoding.blocks import attention_in_effect
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.causal import CausalDecoder
from mdlm_lm_eval.decoding.completion import Completion
from mdlm_lm_eval.decoding.loop import decode_whole
from mdlm_lm_eval.decoding.requirements import check_decoding
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, must_be


def decode_canvases(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    *,
    eos_ids: Collection[int] = (),
    end_of_turn_ids: Collection[int] = (),
    is_decided: Callable[[list[int]], bool] | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> list[Completion]:
    """Decodes a batch: the tokens of each canvas's first `n_returned` slots, up to an EOS or end of turn inclusive.

    Nothing in a row depends on the others. `is_decided` tells of tokens unmasked from the left, without a gap, whether
    the caller needs no more: an unmasked token never changes, so with `early_exit` such a row leaves the batch (its
    result may then end there). The mask token is never emitted. `suppress_eos` bans `eos_ids` and leaves ends of turn
    possible, as LLaDA's `logits_eos_inf` does. `advance(n)` tells that n rows took a step. Raises
    NonFiniteLogitsError where a row's logits are NaN or infinite.
    """
    if not canvases:
        return []
    end_ids = {*eos_ids, *end_of_turn_ids}
    banned = {denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())}
    attention = attention_in_effect(denoiser.attention, options)
    check_decoding(options, attention, edits=denoiser.edits)
    if attention.is_block_causal:
        causal = CausalDecoder(denoiser, canvases, attention, options, banned, end_ids)
        return decode_blocks(causal, is_decided=is_decided, advance=advance)
    if options.is_approximate:
        if not denoiser.keeps_keys_and_values:
            raise must_be("cache", "none for an encoder, which keeps no keys and values", options.cache)
        approximate = ApproximateDecoder(denoiser, canvases, attention, options, banned, end_ids)
        return decode_blocks(approximate, is_decided=is_decided, advance=advance)
    return decode_whole(
        denoiser, canvases, options, banned_ids=banned, end_ids=end_ids, is_decided=is_decided, advance=advance
    )
