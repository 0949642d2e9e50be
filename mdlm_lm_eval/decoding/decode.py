"""Canvases in, completions out: what is checked, and who decodes them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from safetensors.torch import load_file

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, DecodingCall
from mdlm_lm_eval.decoding.engine import Engine
from mdlm_lm_eval.decoding.row_decoders import row_decoder_for
from mdlm_lm_eval.decoding.way import Way, way_of
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import to_device, up_to_positions
from mdlm_lm_eval.model.prefix_store import LEAST_SAVED, PrefixStore, shared_prefixes, sort_key_of
from mdlm_lm_eval.options import DecodingOptions, OptionError


def decode_canvases(
    denoiser: Denoiser, canvases: Sequence[Canvas], options: DecodingOptions, **how: Any
) -> list[Completion]:
    """Returns the completion of each canvas, with errors of `completions_of`; `how` are fields of `DecodingCall`."""
    found = dict(completions_of(DecodingCall(denoiser, canvases, way_of(options, denoiser.attention), **how)))
    return [found[index] for index in range(len(canvases))]


def completions_of(call: DecodingCall) -> Iterator[tuple[int, Completion]]:
    """Decodes canvases: the tokens of each one's first `n_returned` slots, up to and including an EOS or end of turn.

    Gives the number of each canvas with its completion, as rows are done; when one is done, another canvas takes its
    place. Nothing in a row depends on the others. `check_decoding` must accept the options. The mask token is never
    emitted.

    Raises NonFiniteLogitsError if a row's logits are NaN or infinite, and NoProgressError if passes change nothing any
    more.
    """
    denoiser, options = call.denoiser, call.options
    if (row_decoder := row_decoder_for(denoiser, options)) is not None:
        yield from row_decoder.decode(call)
        return
    _check_model(denoiser, call.way, call.end_think_ids)
    frequencies = call.token_frequencies
    if frequencies is None and options.token_frequencies is not None:
        (frequencies,) = load_file(options.token_frequencies).values()
    if frequencies is not None:
        call = replace(call, token_frequencies=to_device(frequencies, denoiser.device))
    for indices in _together(call.canvases, options):
        try:
            for index, completion in Engine(replace(call, canvases=[call.canvases[n] for n in indices])).completions():
                yield indices[index], completion
        except NonFiniteLogitsError as error:
            raise NonFiniteLogitsError(indices[error.index]) from error


def with_prefixes(
    denoiser: Denoiser, canvases: Sequence[Canvas], way: Way, *, least: float = LEAST_SAVED
) -> tuple[list[Canvas], list[int], PrefixStore]:
    """The canvases with the prefixes that they share and that save `least` tokens, an order of them, and their store.

    In this order, canvases with a common prefix follow each other, the longest first, so that memory runs out early if
    at all. The last block, or token, before the first one with a slot is never shared: a row runs it itself, so that it
    takes the same passes with and without a prefix, and can predict the next token.
    """
    attention, step, found = way.attention, way.attention.shared_step, list(canvases)
    store = PrefixStore(denoiser, attention, is_guided=way.options.cfg_scale > 0.0)
    if step is not None and way.cache.remembers:
        starts = [attention.start_of(canvas.slots[0], canvas.prompt_length) for canvas in canvases]
        rows = [canvas.token_ids[: max(0, start - step)] for canvas, start in zip(canvases, starts, strict=True)]
        prefixes = shared_prefixes(rows, step, store, least=least)
        found = [replace(canvas, prefix=prefix) for canvas, prefix in zip(canvases, prefixes, strict=True)]
    order = sorted(range(len(found)), key=lambda n: sort_key_of(found[n].prefix, len(found[n].token_ids)))
    return found, order, store


def _together(canvases: Sequence[Canvas], options: DecodingOptions) -> list[list[int]]:
    """The numbers of canvases that share lanes: of all, or with `batch_invariant` of those of one shape."""
    of_shapes: dict[object, list[int]] = {}
    for index, canvas in enumerate(canvases):
        shape = (up_to_positions(len(canvas.token_ids)), canvas.block_lengths) if options.batch_invariant else None
        of_shapes.setdefault(shape, []).append(index)
    return [*of_shapes.values()]


def _check_model(denoiser: Denoiser, way: Way, end_think_ids: Sequence[int]) -> None:
    """Raises OptionError for a cache, a sampler or an end of thinking that the model does not serve."""
    needs, attention, options = way.needs, way.attention, way.options
    most = len(end_think_ids) if options.max_thinking_tokens is None else 1
    if (options.end_think_boost or options.max_thinking_tokens is not None) and not 1 <= len(end_think_ids) <= most:
        raise OptionError(f"end_think={options.end_think} must be one token, not {len(end_think_ids)}")
    if way.cache.remembers and not denoiser.model.can_generate():
        raise OptionError(f"cache must be none for an encoder, which keeps no keys and values, not {options.cache}")
    if not denoiser.shift:
        return
    if needs.hindsight:
        raise OptionError(f"sampler={way.name} does not work with a model whose logits are shifted")
    runs_blocks = options.is_approximate or (attention.is_block_causal and attention.blocks_from == "row_start")
    if needs.proposals_for_filled and runs_blocks:
        raise OptionError(
            f"{way.sampler.asked_by or 'sampler'} does not work with a model whose logits are shifted and a cache that "
            "is renewed at each block, or blocks from a row's start: a pass over a block does not predict its first "
            "token, which could not be edited"
        )
