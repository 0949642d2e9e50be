"""Decoding of prompts, as token ids or as texts, for use from Python."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, overload

from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.decoding.blocks import attention_in_effect
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.canvases import decode_canvases
from mdlm_lm_eval.families import end_of_turn_ids, eos_ids, reserved_positions
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.text import Ending, encode_without_masks
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.requests import seed_of
from mdlm_lm_eval.values import must_be, parse_whole


@overload
def decode(
    denoiser: Denoiser,
    prompts: Sequence[list[int]],
    options: DecodingOptions,
    *,
    max_gen_toks: int | None = None,
    stop_ids: Collection[int] = (),
) -> list[list[int]]: ...


@overload
def decode(
    denoiser: Denoiser,
    prompts: Sequence[str],
    options: DecodingOptions,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_gen_toks: int | None = None,
    stop_ids: Collection[int] = (),
) -> list[str]: ...


def decode(
    denoiser: Denoiser,
    prompts: Sequence[Any],
    options: DecodingOptions,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_gen_toks: int | None = None,
    stop_ids: Collection[int] = (),
) -> list[list[int]] | list[str]:
    """What follows every prompt, decoded as one batch: the whole canvas, or its first `max_gen_toks` tokens.

    Prompts are lists of token ids, and so are the answers; with a `tokenizer` (`load_tokenizer`) both are texts. A row
    ends with its first token of `stop_ids`, a text before its first end token too. Equal prompts are repetitions and
    draw different random numbers. Raises OptionError for prompts of another kind, for a canvas that does not fit, and
    for fillers without a tokenizer; NonFiniteLogitsError where a row's logits are NaN or infinite.
    """
    _check(options, max_gen_toks, stop_ids)
    if isinstance(prompts, str):
        raise OptionError("prompts must be a list of lists of token ids, or a list of texts with a tokenizer")
    prompts = list(prompts)  # each is read twice
    if tokenizer is None:
        _check_ids(prompts, denoiser.vocab_size)
        return _decode_ids(denoiser, prompts, options, [], max_gen_toks, stop_ids, ())
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise must_be("tokenizer", "what load_tokenizer(...) returns", tokenizer)
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise OptionError("prompts must be a list of texts where a tokenizer is given")

    def encode(piece: str, first: bool) -> list[int]:
        return tokenizer.encode(piece, add_special_tokens=first)

    ids = [encode_without_masks(tokenizer, prompt, denoiser.mask_token_id, encode) for prompt in prompts]
    eos, end_of_turn = eos_ids(tokenizer, None), end_of_turn_ids(tokenizer)
    fillers = encode(options.filler, False) * options.n_fillers
    rows = _decode_ids(denoiser, ids, options, fillers, max_gen_toks, {*stop_ids, *eos}, end_of_turn)
    ending = Ending(tokenizer, eos | end_of_turn, until=(), think_end_token=None)
    return [ending.text(row) for row in rows]


def _check(options: object, max_gen_toks: object, stop_ids: Collection[object]) -> None:
    if not isinstance(options, DecodingOptions):
        raise must_be("options", "DecodingOptions(...)", options)
    if max_gen_toks is not None:
        parse_whole("max_gen_toks", max_gen_toks, least=1)
    if not all(map(_is_id, stop_ids)):
        raise must_be("stop_ids", "token ids", stop_ids)


def _check_ids(prompts: Sequence[object], vocab_size: int) -> None:
    if not all(isinstance(prompt, list) and all(map(_is_id, prompt)) for prompt in prompts):
        raise OptionError(
            "prompts must be a list of lists of token ids, or of texts with tokenizer=load_tokenizer(...)"
        )
    for id in (id for prompt in prompts for id in prompt):  # type: ignore[attr-defined]
        if id >= vocab_size:
            raise must_be("prompts", f"token ids from 0 to {vocab_size - 1}", id)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decode_ids(
    denoiser: Denoiser,
    prompts: Sequence[list[int]],
    options: DecodingOptions,
    filler_ids: list[int],
    max_gen_toks: int | None,
    stop_ids: Collection[int],
    end_of_turn: Collection[int],
) -> list[list[int]]:
    if len(filler_ids) < options.n_fillers:
        raise OptionError(f"n_fillers={options.n_fillers} is not allowed without a tokenizer; allowed is 0")
    attention = attention_in_effect(denoiser.attention, options)
    repetitions: Counter[tuple[int, ...]] = Counter()
    canvases = []
    for prompt in prompts:
        key = f"{options.seed} {repetitions[tuple(prompt)]} {prompt}"
        repetitions[tuple(prompt)] += 1
        canvas, _ = build_canvas(
            prompt,
            options,
            mask_token_id=denoiser.mask_token_id,
            max_length=denoiser.max_length - reserved_positions(denoiser.model.config),
            request_gen_toks=max_gen_toks,
            filler_ids=filler_ids,
            seed=seed_of(key),
            attention=attention,
        )
        canvases.append(canvas)
    completions = decode_canvases(denoiser, canvases, options, eos_ids=stop_ids, end_of_turn_ids=end_of_turn)
    return [completion.token_ids for completion in completions]
