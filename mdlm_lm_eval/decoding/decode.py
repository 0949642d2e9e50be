"""Canvases in, completions out: what is checked, and who decodes them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, DecodingCall
from mdlm_lm_eval.decoding.engine import Engine
from mdlm_lm_eval.decoding.row_decoders import row_decoder_for
from mdlm_lm_eval.decoding.way import Way, way_of
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import to_device, up_to_positions
from mdlm_lm_eval.options import DecodingOptions, OptionError


def decode_canvases(
    denoiser: Denoiser, canvases: Sequence[Canvas], options: DecodingOptions, **how: Any
) -> list[Completion]:
    """Returns the completion of each canvas, with the arguments and errors of `completions_of`."""
    found = dict(completions_of(denoiser, canvases, way_of(options, denoiser.attention), **how))
    return [found[index] for index in range(len(canvases))]


def completions_of(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    way: Way,
    *,
    eos_ids: Collection[int] = (),
    end_of_turn_ids: Collection[int] = (),
    end_think_ids: Sequence[int] = (),
    token_frequencies: Tensor | None = None,
    label_ids: Sequence[int] = (),
    is_decided: Callable[[list[int]], bool] | None = None,
    advance: Callable[[int], object] = lambda _: None,
    batch_size: int | None = None,
) -> Iterator[tuple[int, Completion]]:
    """Decodes canvases: the tokens of each one's first `n_returned` slots, up to and including an EOS or end of turn.

    Gives the number of each canvas with its completion, as rows are done. `batch_size` rows run at a time (all by
    default); when one is done, another canvas takes its place. Nothing in a row depends on the others. `check_decoding`
    must accept the options. The mask token is never emitted. `suppress_eos` bans `eos_ids` and leaves ends of turn
    possible, as LLaDA's `logits_eos_inf` does.

    is_decided: whether the final tokens of a row, from the left without a gap, are enough for the caller. With
        `early_exit`, such a row leaves the batch, and its result may end there.
    advance: called as `advance(n)` after n rows took a step.
    end_think_ids: the tokens of the option `end_think`. token_frequencies: [V], those of that option's file.
    label_ids: with them, completions hold the model's answer at the first slot, except those of row decoders.

    Raises NonFiniteLogitsError if a row's logits are NaN or infinite, and NoProgressError if passes change nothing any
    more.
    """
    options = way.options
    call = DecodingCall(
        denoiser,
        canvases,
        way,
        banned_ids={denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())},
        end_ids={*eos_ids, *end_of_turn_ids},
        is_decided=is_decided if options.early_exit else None,
        advance=advance,
        batch_size=batch_size or max(1, len(canvases)),
        end_think_ids=end_think_ids,
        label_ids=label_ids,
    )
    if (row_decoder := row_decoder_for(denoiser, options)) is not None:
        yield from row_decoder.decode(call)
        return
    _check_model(denoiser, way, end_think_ids)
    if token_frequencies is None and options.token_frequencies is not None:
        (token_frequencies,) = load_file(options.token_frequencies).values()
    if token_frequencies is not None:
        token_frequencies = to_device(token_frequencies, denoiser.device)
    for indices in _together(canvases, options):
        own = replace(call, canvases=[canvases[n] for n in indices], token_frequencies=token_frequencies)
        try:
            for index, completion in Engine(own).completions():
                yield indices[index], completion
        except NonFiniteLogitsError as error:
            raise NonFiniteLogitsError(indices[error.index]) from error


def _together(canvases: Sequence[Canvas], options: DecodingOptions) -> list[list[int]]:
    """The numbers of canvases that share lanes: of all, or with `batch_invariant` of those of one shape."""
    of_shapes: dict[object, list[int]] = {}
    for index, canvas in enumerate(canvases):
        shape = (up_to_positions(len(canvas.token_ids)), canvas.block_lengths) if options.batch_invariant else None
        of_shapes.setdefault(shape, []).append(index)
    return [*of_shapes.values()]


def _check_model(denoiser: Denoiser, way: Way, end_think_ids: Sequence[int]) -> None:
    """Raises OptionError for a cache, a sampler or an end of thinking that the model does not serve."""
    needs, attention, options = way.sampler.needs(way.options), way.attention, way.options
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
