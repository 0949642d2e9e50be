"""Reverse diffusion of many canvases in lanes: one loop for all samplers, caches and attention patterns.

A pass gathers a window of each row that takes part, asks the model, proposes tokens, waits once for them, lets the
sampler choose, and writes. Wide rows (whole canvases or prompts) and rows that run a block take turns. Then each row
moves on by itself: to its next step, its next stage or block, or out of its lane, which another canvas takes.
Nothing in a row depends on the others.

The columns that a pass runs:
    full attention without a cache: the whole canvas; with `append_blocks`, up to the block's end.
    block-causal: first the blocks before the first slot's, once. Then the row's block, with the remembered keys and
        values of earlier blocks, which never see later tokens. A finished block, but for the last, is run once more,
        with the text that follows it, so that the keys and values of its final tokens are remembered. If it predicts
        the next token, that pass may also fill it. With `cache=none`, a pass runs the canvas up to the block's end.
    a cache that is renewed at each block: the whole canvas in a block's first pass; then the block, with or without
        the columns after it, and the keys and values that the first pass computed for all others.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from mdlm_lm_eval.decoding import readers
from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.canvas import Canvas, Completion, DecodingCall, FirstToken
from mdlm_lm_eval.decoding.passes import Hindsight, Outcome, Passes, Reader
from mdlm_lm_eval.decoding.row_decoders import row_decoder_for
from mdlm_lm_eval.decoding.rows import MOST_IDLE, Lanes, Row, Stage
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.decoding.way import Way, way_of
from mdlm_lm_eval.decoding.windows import Window, next_window, wide_window
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import bucket, to_device, up_to_positions
from mdlm_lm_eval.model.prefix_store import LEAST_SAVED, PrefixStore, shared_prefixes, sort_key_of
from mdlm_lm_eval.options import DecodingOptions, OptionError, shown

# On a GPU, stop strings are looked for after every fourth step of a row, as this takes most of the host's time.
_STEPS_BETWEEN_LOOKS = 4


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
    """Raises OptionError for a sampler or an end of thinking that the model does not serve."""
    needs, attention, options = way.needs, way.attention, way.options
    most = len(end_think_ids) if options.max_thinking_tokens is None else 1
    if (options.end_think_boost or options.max_thinking_tokens is not None) and not 1 <= len(end_think_ids) <= most:
        raise OptionError(f"end_think={options.end_think} must be one token, not {len(end_think_ids)}")
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


class NoProgressError(RuntimeError):
    """Masks are left, but passes change nothing any more."""

    def __init__(self, way: Way, index: int) -> None:
        changes = ", ".join(f"{name}={shown(value)}" for name, value in way.options.changes().items())
        super().__init__(
            f"the sampler {type(way.sampler).__name__} makes no progress on canvas {index}: {MOST_IDLE} passes "
            f"changed nothing; options: {changes or 'the defaults'}"
        )


class Engine:
    """Rows in lanes, and the passes over them.

    ahead: lanes in which prompts are run by themselves, if blocks are stored: those of the next canvases in one pass,
        while all rows in `lanes` stand still, so that no later row costs a pass over its prompt alone.
    """

    def __init__(self, call: DecodingCall) -> None:
        self.call, self.options, self.batch = call, call.options, Batch(call)
        batch, canvases = self.batch, self.batch.canvases
        self.passes = Passes(batch, _readers(batch))
        n = min(call.n_lanes, bucket(len(canvases), batch.device))
        self.lanes = Lanes(batch, n, self.passes.fresh)
        self.ahead: Lanes | None = None
        if batch.way.cache.stores_blocks and not batch.predicts_next:
            self.ahead = Lanes(batch, max(1, n // 2) if batch.on_gpu else n // 2 + 1, {})
        order: Sequence[int] = range(len(canvases))
        if batch.way.cache.stores_blocks:
            # Canvases with the same prefix follow each other, those with the most masks first.
            order = sorted(order, key=lambda n: sort_key_of(canvases[n].prefix, len(canvases[n].slots)))
        self.waiting = (Row(n, batch) for n in order)
        self.window: Window | None = None

    def completions(self) -> Iterator[tuple[int, Completion]]:
        """Decodes all canvases; see `completions_of`. Raises NoProgressError and NonFiniteLogitsError."""
        self.fill()
        while any(self.lanes.rows):
            with self._at_work():
                if self.window is None:
                    self.window = next_window(self.batch, self.lanes)
                over = self.move_on(self.window, self.passes.run(self.window))
            for row in over:
                self.lanes.rows[row.lane] = None
                yield row.index, self._completion(row)
            if over:
                self.window = None
                self._refill()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """How passes run; the caller of `completions` has its own settings."""
        with torch.no_grad(), self.batch.denoiser.in_fixed_shapes(self.options.batch_invariant):
            yield

    def fill(self) -> None:
        """Fills the lanes with the first rows."""
        with self._at_work():
            self._begin(self.lanes, self.lanes.free)

    def _begin(self, lanes: Lanes, free: Sequence[int]) -> list[Row]:
        """Begins as many of the rows that wait as there are free lanes."""
        rows = list(itertools.islice(self.waiting, len(free)))
        lanes.begin(free[: len(rows)], rows)
        if self.options.max_thinking_tokens is not None:
            for row in rows:
                readers.end_thinking(row, lanes)
        return rows

    def _refill(self) -> None:
        """Fills empty lanes with the next rows, whose prompts it may run first; drops lanes that stay empty.

        On a GPU it drops only some of them, so that graphs meet few numbers of rows.
        """
        lanes = self.lanes
        with self._at_work():
            while free := lanes.free:
                rows = self._begin(lanes, free) if self.ahead is None else self._take_ahead(self.ahead, free)
                if not rows:
                    break
        n_rows = len(lanes) - len(free)
        size = min(len(lanes), bucket(n_rows, self.batch.device)) if n_rows else 0
        if size < len(lanes):
            lanes.keep([*(lane for lane in range(len(lanes)) if lane not in free), *free[: size - n_rows]])

    def _take_ahead(self, ahead: Lanes, free: Sequence[int]) -> list[Row]:
        """Takes over as many of the rows ahead as there are free lanes. If there are none, runs the next prompts."""
        if not any(ahead.rows):
            begun = self._begin(ahead, ahead.free)
            if prompts := [row for row in begun if row.is_wide]:
                window = wide_window(self.batch, ahead, prompts)
                self.move_on(window, self.passes.run(window))
        rows = [row for row in ahead.rows if row is not None][: len(free)]
        self.lanes.take(free[: len(rows)], ahead, rows)
        return rows

    def move_on(self, window: Window, outcome: Outcome | None) -> list[Row]:
        """Writes what a pass did, and moves its rows on. Returns the rows that are over."""
        mask = self.batch.mask_token_id
        has_changed = masks_left = [False] * len(window.rows)
        first_open = [-1] * len(window.rows)
        if outcome is not None:
            has_changed = (outcome.after != outcome.before).any(1).tolist()
            masks_left = (window.own & (outcome.after == mask)).any(1).tolist()
            if self.batch.runs_later:  # the first block that held masks before the pass
                had_masks = window.own & (outcome.before == mask)
                first_open = np.where(had_masks, window.blocks, self.batch.n_columns).min(1).tolist()
            self._write(window, outcome)
        n_steps = 0
        over: list[Row] = []
        for n, row in enumerate(window.rows):
            if row is None:
                continue
            takes_step, n_closed, number = row.stage is not Stage.STORE, row.n_closed, row.number
            row.cost.forward_passes += 1
            row.cost.steps += takes_step
            row.cost.tokens += (row.extent.end - row.extent.first) * (2 if self.batch.is_guided else 1)
            n_steps += takes_step
            has_moved = row.move_on(changed=has_changed[n], has_masks=masks_left[n], first_open=first_open[n])
            if row.idle == MOST_IDLE:
                raise NoProgressError(self.call.way, row.index)
            if has_moved:
                self.window = None
                if self.options.max_thinking_tokens is not None and row.number > number and not row.is_over:
                    readers.end_thinking(row, window.of)
            if self._is_done(row, has_closed=row.n_closed > n_closed, takes_step=takes_step):
                over.append(row)
        self.call.advance(n_steps)
        return over

    def _write(self, window: Window, outcome: Outcome) -> None:
        """Writes the tokens that a pass changed, with a trace also as events."""
        numbers, offsets = (outcome.after != outcome.before).nonzero()
        columns, tokens = window.columns[numbers, offsets], outcome.after[numbers, offsets]
        window.of.tokens[window.lanes[numbers, 0], columns] = tokens
        slots = window.slots[numbers, offsets].tolist()
        for n, offset, slot, new in zip(numbers.tolist(), offsets.tolist(), slots, tokens.tolist(), strict=True):
            row = window.rows[n]
            assert row is not None
            row.answer[slot] = new
            if self.options.trace:
                column, old = int(window.columns[n, offset]), int(outcome.before[n, offset])
                sure = float(outcome.confidence[n, offset])
                row.events.append(Event(row.cost.forward_passes + 1, column, old, new, sure))

    def _is_done(self, row: Row, *, has_closed: bool, takes_step: bool) -> bool:
        """Whether a row is complete: its blocks are over, one that ended holds an end, or its answer is decided."""
        is_decided = row.decide()
        if row.is_over or (has_closed and self.batch.stops_at_end and row.has_closed_an_end()):
            return True
        if not self.call.way.exits_early:
            return False
        return is_decided or (takes_step and self._is_enough(row))

    def _is_enough(self, row: Row) -> bool:
        """Whether a row's decided tokens are enough for the caller, who is asked when there are more of them."""
        if row.n_decided <= row.n_asked:
            return False
        if self.batch.on_gpu and row.cost.steps % _STEPS_BETWEEN_LOOKS:
            return False
        row.n_asked = row.n_decided
        return self.call.is_enough(row.answer[: row.n_decided])

    def _completion(self, row: Row) -> Completion:
        """The answer of a row that is over, up to and including an end of text."""
        answer, mask = row.answer[: row.n_decided], self.batch.mask_token_id
        n = next((n for n, token in enumerate(answer, start=1) if token in self.batch.end_ids), len(answer))
        if self.batch.shares_prefixes and row.canvas.prefix is not None:
            row.cost.shared = len(row.canvas.prefix) * (2 if self.batch.is_guided else 1)
        return Completion(
            token_ids=answer[:n],
            cost=row.cost,
            n_written=sum(token != mask for token in row.answer[: row.canvas.n_returned]),
            events=tuple(sorted(row.events, key=lambda event: (event.step, event.position))),
            first=(row.first or FirstToken(0, 0, 0.0)) if self.call.label_ids else None,
        )


def _readers(batch: Batch) -> list[Reader]:
    """The readers of each pass, in the order in which they see its logits."""
    found: list[Reader] = []
    if own := batch.way.sampler.state(1, batch.n_columns, torch.device("cpu")):
        found.append(readers.SamplerState(own))
    if batch.predicts_next and not batch.fills_next:
        found.append(readers.NextToken())
    if batch.call.label_ids:
        found.append(readers.FirstSlot(batch))
    if batch.options.end_think_boost:
        found.append(readers.RaisedEndOfThinking(batch))
    if batch.way.needs.history:
        found.append(readers.History(batch))
    if batch.way.needs.hindsight:
        found.append(Hindsight(batch))
    return found
