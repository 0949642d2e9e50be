"""Decoding from Python: of prompts, as token ids or as texts, and of canvases."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.decoding.block_loop import ApproximateDecoder, BlockDecoder, CausalDecoder, decode_blocks
from mdlm_lm_eval.decoding.canvas import Canvas, attention_in_effect, build_canvas, seed_of
from mdlm_lm_eval.decoding.completion import Completion
from mdlm_lm_eval.decoding.loop import decode_whole
from mdlm_lm_eval.decoding.requirements import check_decoding
from mdlm_lm_eval.families import end_of_turn_ids, eos_ids, reserved_positions
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.text import Ending, encode_without_masks
from mdlm_lm_eval.options import DecodingOptions, OptionError


def decode(
    denoiser: Denoiser,
    prompts: Iterable[list[int]] | Iterable[str],
    options: DecodingOptions,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_gen_toks: int | None = None,
    stop_ids: Collection[int] = (),
) -> list[Any]:
    """What follows every prompt, decoded as one batch: the whole canvas, or its first `max_gen_toks` tokens.

    Prompts are lists of token ids, and so are the answers; with a `tokenizer` (`load_tokenizer`) both are texts. A row
    ends with its first token of `stop_ids`, a text before its first end token too. Equal prompts are repetitions and
    draw different random numbers. Raises OptionError for options that this model cannot serve, for a canvas that does
    not fit, and for fillers without a tokenizer; NonFiniteLogitsError where a row's logits are NaN or infinite.
    """
    check_decoding(options, attention_in_effect(denoiser.attention, options), edits=denoiser.edits)
    if options.n_fillers and tokenizer is None:
        raise OptionError(f"n_fillers={options.n_fillers} is not allowed without a tokenizer; allowed is 0")
    ids: Sequence[Any] = list(prompts)
    filler_ids: list[int] = []
    end_of_turn: Collection[int] = ()
    if tokenizer is not None:

        def encode(piece: str, first: bool) -> list[int]:
            return tokenizer.encode(piece, add_special_tokens=first)

        ids = [encode_without_masks(tokenizer, prompt, denoiser.mask_token_id, encode) for prompt in ids]
        filler_ids = encode(options.filler, False) * options.n_fillers
        stop_ids, end_of_turn = {*stop_ids, *eos_ids(tokenizer, None)}, end_of_turn_ids(tokenizer)
    repetitions: Counter[tuple[int, ...]] = Counter()
    canvases = []
    for prompt in ids:
        seed = seed_of(f"{options.seed} {repetitions[tuple(prompt)]} {prompt}")
        repetitions[tuple(prompt)] += 1
        canvas, _ = build_canvas(
            prompt,
            options,
            mask_token_id=denoiser.mask_token_id,
            max_length=denoiser.max_length - reserved_positions(denoiser.model.config),
            request_gen_toks=max_gen_toks,
            filler_ids=filler_ids,
            seed=seed,
            attention=denoiser.attention,
        )
        canvases.append(canvas)
    completions = decode_canvases(denoiser, canvases, options, eos_ids=stop_ids, end_of_turn_ids=end_of_turn)
    if tokenizer is None:
        return [completion.token_ids for completion in completions]
    ending = Ending(tokenizer, frozenset(stop_ids) | frozenset(end_of_turn), until=(), think_end_token=None)
    return [ending.text(completion.token_ids) for completion in completions]


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

    Options are those that `check_decoding` lets through. Nothing in a row depends on the others. `is_decided` tells of
    tokens unmasked from the left, without a gap, whether the caller needs no more: an unmasked token never changes, so
    with `early_exit` such a row leaves the batch (its result may then end there). The mask token is never emitted.
    `suppress_eos` bans `eos_ids` and leaves ends of turn possible, as LLaDA's `logits_eos_inf` does. `advance(n)` tells
    that n rows took a step. Raises NonFiniteLogitsError where a row's logits are NaN or infinite.
    """
    if not canvases:
        return []
    end_ids = {*eos_ids, *end_of_turn_ids}
    banned = {denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())}
    attention = attention_in_effect(denoiser.attention, options)
    if not attention.is_block_causal and not options.is_approximate:
        return decode_whole(
            denoiser, canvases, options, banned_ids=banned, end_ids=end_ids, is_decided=is_decided, advance=advance
        )
    if not attention.is_block_causal and not denoiser.keeps_keys_and_values:
        raise OptionError(f"cache must be none for an encoder, which keeps no keys and values, not {options.cache}")
    kind: type[BlockDecoder] = CausalDecoder if attention.is_block_causal else ApproximateDecoder
    decoder = kind(denoiser, canvases, attention, options, banned, end_ids)
    return decode_blocks(decoder, is_decided=is_decided, advance=advance)
