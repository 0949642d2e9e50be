"""Canvases in, completions out: what is checked, and who decodes them."""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from safetensors.torch import load_file
from torch import Tensor

from mdlm_lm_eval.decoding.caches import cache_of
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, Work, attention_in_effect
from mdlm_lm_eval.decoding.engine import Engine
from mdlm_lm_eval.decoding.row_decoders import row_decoder_for
from mdlm_lm_eval.decoding.thinking import check_end_of_thinking
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import to_device, up_to_positions
from mdlm_lm_eval.options import DecodingOptions, OptionError


def decode_canvases(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    *,
    eos_ids: Collection[int] = (),
    end_of_turn_ids: Collection[int] = (),
    end_think_ids: Sequence[int] = (),
    token_frequencies: Tensor | None = None,
    label_ids: Sequence[int] = (),
    is_decided: Callable[[list[int]], bool] | None = None,
    advance: Callable[[int], object] = lambda _: None,
    finished: Callable[[int, Completion], object] = lambda *_: None,
    batch_size: int | None = None,
) -> list[Completion]:
    """Decodes canvases: the tokens of each one's first `n_returned` slots, up to and including an EOS or end of turn.

    `batch_size` rows run at a time (all by default); when one is done, another canvas takes its place. Nothing in a
    row depends on the others. `check_decoding` must accept the options. The mask token is never emitted. `suppress_eos`
    bans `eos_ids` and leaves ends of turn possible, as LLaDA's `logits_eos_inf` does.

    is_decided: whether the final tokens of a row, from the left without a gap, are enough for the caller. With
        `early_exit`, such a row leaves the batch, and its result may end there.
    advance, finished: called as `advance(n)` after n rows took a step, and as `finished(n, completion)` after canvas n.
    end_think_ids: the tokens of the option `end_think`. token_frequencies: [V], those of that option's file.
    label_ids: with them, completions hold the model's answer at the first slot, except those of row decoders.

    Raises NonFiniteLogitsError if a row's logits are NaN or infinite, and NoProgressError if passes change nothing any
    more.
    """
    if not canvases:
        return []
    completions: dict[int, Completion] = {}

    def keep(indices: Sequence[int], number: int, completion: Completion) -> None:
        completions[indices[number]] = completion
        finished(indices[number], completion)

    attention = attention_in_effect(denoiser.attention, options)
    work = Work(
        denoiser,
        canvases,
        options,
        attention,
        banned_ids={denoiser.mask_token_id, *(eos_ids if options.suppress_eos else ())},
        end_ids={*eos_ids, *end_of_turn_ids},
        is_decided=is_decided if options.early_exit else None,
        advance=advance,
        finished=functools.partial(keep, range(len(canvases))),
        batch_size=batch_size or len(canvases),
    )
    if (row_decoder := row_decoder_for(denoiser, options)) is not None:
        row_decoder.decode(work)
        return [completions[index] for index in range(len(canvases))]
    _check_model(denoiser, options, attention)
    check_end_of_thinking(options, end_think_ids)
    frequencies = _frequencies(denoiser, options, token_frequencies)
    for indices in _together(canvases, options):
        own = replace(work, canvases=[canvases[n] for n in indices], finished=functools.partial(keep, indices))
        engine = Engine(own, end_think_ids=end_think_ids, token_frequencies=frequencies, label_ids=label_ids)
        with torch.no_grad(), denoiser.in_fixed_shapes(options.batch_invariant):
            try:
                engine.decode()
            except NonFiniteLogitsError as error:
                raise NonFiniteLogitsError(indices[error.index]) from error
    return [completions[index] for index in range(len(canvases))]


def _together(canvases: Sequence[Canvas], options: DecodingOptions) -> list[list[int]]:
    """The numbers of canvases that share lanes: of all, or with `batch_invariant` of those of one shape."""
    if not options.batch_invariant:
        return [[*range(len(canvases))]]
    of_shapes: dict[object, list[int]] = {}
    for index, canvas in enumerate(canvases):
        of_shapes.setdefault((up_to_positions(len(canvas.token_ids)), canvas.block_lengths), []).append(index)
    return [*of_shapes.values()]


def _frequencies(denoiser: Denoiser, options: DecodingOptions, given: Tensor | None) -> Tensor | None:
    """The token frequencies [V] on the device: those given, or those of the option's file."""
    if given is None and options.token_frequencies is not None:
        (given,) = load_file(options.token_frequencies).values()
    return None if given is None else to_device(given, denoiser.device)


def _check_model(denoiser: Denoiser, options: DecodingOptions, attention: AttentionPattern) -> None:
    """Raises OptionError for a cache or sampler that needs what the model does not give."""
    needs = options.way.needs(options)
    if cache_of(attention, options).remembers and not denoiser.model.can_generate():
        raise OptionError(f"cache must be none for an encoder, which keeps no keys and values, not {options.cache}")
    if not denoiser.shift:
        return
    if needs.hindsight:
        raise OptionError(f"sampler={options.sampler_name} does not work with a model whose logits are shifted")
    runs_blocks = options.is_approximate or (attention.is_block_causal and attention.blocks_from == "row_start")
    if needs.proposals_for_filled and runs_blocks:
        raise OptionError(
            f"{options.way.asked_by or 'sampler'} does not work with a model whose logits are shifted and a cache that "
            "is renewed at each block, or blocks from a row's start: a pass over a block does not predict its first "
            "token, which could not be edited"
        )
