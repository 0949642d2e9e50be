"""Decoding of prompts, as token ids or as texts, for use from Python."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.checkpoints import end_of_turn_ids, eos_ids, reserved_positions
from mdlm_lm_eval.decoding.canvas import attention_in_effect, build_canvas, seed_of
from mdlm_lm_eval.decoding.checks import check_decoding
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.text import Ending, encode_without_masks
from mdlm_lm_eval.options import DecodingOptions, OptionError


def decode(
    denoiser: Denoiser,
    prompts: str | Iterable[list[int]] | Iterable[str],
    options: DecodingOptions,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_gen_toks: int | None = None,
    stop_ids: Collection[int] = (),
    end_think_ids: Sequence[int] = (),
    token_frequencies: Tensor | None = None,
) -> list[Any]:
    """What follows every prompt, decoded as one batch: the whole canvas, or its first `max_gen_toks` tokens.

    Prompts are lists of token ids, and so are the answers; with a `tokenizer` (`load_tokenizer`) both are texts. A text
    by itself is one prompt, and its answer comes in a list too. A row ends with its first token of `stop_ids`, a text
    before its first end token too. `end_think_ids` are the tokens of the option `end_think` where there is no
    tokenizer, `token_frequencies` [V] what that option's file holds. Equal prompts are repetitions and draw different
    random numbers. Raises OptionError for options that this model cannot serve, for a canvas that does not fit, for
    texts or fillers without a tokenizer, and for `trace`, which answers alone do not hold; NonFiniteLogitsError where a
    row's logits are NaN or infinite.
    """
    check_decoding(options, attention_in_effect(denoiser.attention, options), edits=denoiser.edits)
    if options.n_fillers and tokenizer is None:
        raise OptionError(f"n_fillers={options.n_fillers} is not allowed without a tokenizer; allowed is 0")
    if options.trace:
        raise OptionError("trace=true is not allowed in decode(), which returns answers alone; lm_eval records traces")
    ids = _listed(prompts, tokenizer)
    filler_ids: list[int] = []
    end_of_turn: Collection[int] = ()
    if tokenizer is not None:

        def encode(piece: str, first: bool) -> list[int]:
            return tokenizer.encode(piece, add_special_tokens=first)

        ids = [encode_without_masks(tokenizer, prompt, denoiser.mask_token_id, encode) for prompt in ids]
        filler_ids = encode(options.filler, False) * options.n_fillers
        stop_ids, end_of_turn = {*stop_ids, *eos_ids(tokenizer, None)}, end_of_turn_ids(tokenizer)
        end_think_ids = encode(options.end_think, False)
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
    completions = decode_canvases(
        denoiser,
        canvases,
        options,
        eos_ids=stop_ids,
        end_of_turn_ids=end_of_turn,
        end_think_ids=end_think_ids,
        token_frequencies=token_frequencies,
    )
    if tokenizer is None:
        return [completion.token_ids for completion in completions]
    ending = Ending(tokenizer, frozenset(stop_ids) | frozenset(end_of_turn), until=(), think_end_token=None)
    return [ending.of(completion.token_ids)[0] for completion in completions]


def _listed(
    prompts: str | Iterable[list[int]] | Iterable[str], tokenizer: PreTrainedTokenizerBase | None
) -> Sequence[Any]:
    found: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    if tokenizer is None and any(isinstance(prompt, str) for prompt in found):
        raise OptionError("a text cannot be decoded without a tokenizer; give tokenizer=, or prompts as token ids")
    return found
