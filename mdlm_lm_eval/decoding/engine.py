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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.canvas import Completion, DecodingCall, FirstToken
from mdlm_lm_eval.decoding.hindsight import Hindsight
from mdlm_lm_eval.decoding.history import History
from mdlm_lm_eval.decoding.lanes import Lanes, Queue
from mdlm_lm_eval.decoding.passes import Outcome, Passes, PlaceLogits
from mdlm_lm_eval.decoding.readers import FirstSlot, NextToken, Reader, SamplerState
from mdlm_lm_eval.decoding.rows import MOST_IDLE, Row, Stage
from mdlm_lm_eval.decoding.thinking import RaisedEndOfThinking, ThinkingBudget
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.decoding.windows import Window, next_window, wide_window
from mdlm_lm_eval.model.devices import bucket
from mdlm_lm_eval.options import shown

# On a GPU, stop strings are looked for after every fourth step of a row, as this takes most of the host's time.
_STEPS_BETWEEN_LOOKS = 4


class NoProgressError(RuntimeError):
    """Masks are left, but passes change nothing any more."""

    def __init__(self, way: Way, index: int) -> None:
        changes = ", ".join(f"{name}={shown(value)}" for name, value in way.options.changes().items())
        super().__init__(
            f"the sampler {type(way.sampler).__name__} makes no progress on canvas {index}: {MOST_IDLE} passes "
            f"changed nothing; options: {changes or 'the defaults'}"
        )


class Engine:
    """Rows in lanes, and the passes over them."""

    def __init__(self, call: DecodingCall) -> None:
        self.call, self.options = call, call.options
        self.batch = batch = Batch(call)
        n_lanes = min(call.batch_size, bucket(len(batch.canvases), batch.device))
        self.lanes = Lanes(batch, n_lanes)
        self.budget: ThinkingBudget | None = None
        if self.options.max_thinking_tokens is not None:
            self.budget = ThinkingBudget(batch, self.options.max_thinking_tokens, call.end_think_ids[0])
        logits = Hindsight(batch) if batch.structure.needs.hindsight else PlaceLogits(batch)
        readers = _readers(batch, n_lanes, logits)
        fixed = None if self.budget is None else self.budget.token_id
        self.passes = Passes(batch, logits, readers, fixed)
        self.queue = Queue(batch, self.lanes, readers, self._begin_rows, self._run_prompts)
        self.window: Window | None = None

    def completions(self) -> Iterator[tuple[int, Completion]]:
        """Decodes all canvases; see `completions_of`. Raises NoProgressError and NonFiniteLogitsError."""
        with self._at_work():
            self.queue.fill()
        while any(row is not None for row in self.lanes.rows):
            with self._at_work():
                if self.window is None:
                    self.window = next_window(self.batch, self.lanes)
                over = self.move_on(self.window, self.passes.run(self.window))
            for row in over:
                self.lanes.rows[row.lane] = None
                yield row.index, self._completion(row)
            if over:
                self.window = None
                with self._at_work():
                    self.queue.refill()  # may be a pass over the prompts of the next canvases

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """How passes run; the caller of `completions` has its own settings."""
        with torch.no_grad(), self.batch.denoiser.in_fixed_shapes(self.options.batch_invariant):
            yield

    def _begin_rows(self, lanes: Lanes, rows: Sequence[Row]) -> None:
        """Prepares rows that have entered lanes."""
        if self.budget is not None:
            for row in rows:
                self.budget.enter_block(row, lanes)

    def _run_prompts(self, lanes: Lanes, rows: Sequence[Row]) -> None:
        """Runs the prompts of rows that wait."""
        window = wide_window(self.batch, lanes, rows)
        self.move_on(window, self.passes.run(window))

    def move_on(self, window: Window, outcome: Outcome | None) -> list[Row]:
        """Writes what a pass did, and moves its rows on. Returns the rows that are over."""
        has_changed = masks_left = [False] * len(window.rows)
        if outcome is not None:
            has_changed = (outcome.after != outcome.before).any(1).tolist()
            masks_left = (window.own & (outcome.after == self.batch.mask_token_id)).any(1).tolist()
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
            has_moved = row.move_on(
                changed=has_changed[n],
                has_masks=masks_left[n],
                first_open=self._first_open(window, outcome, n),
            )
            if row.idle == MOST_IDLE:
                raise NoProgressError(self.call.way, row.index)
            if has_moved:
                self.window = None
                if self.budget is not None and row.number > number and not row.is_over:
                    self.budget.enter_block(row, window.of)
            if self._is_done(row, has_closed=row.n_closed > n_closed, takes_step=takes_step):
                over.append(row)
        self.call.advance(n_steps)
        return over

    def _first_open(self, window: Window, outcome: Outcome | None, n: int) -> int:
        """With passes over all later blocks, the first block of row n that held masks before the pass."""
        if outcome is None or not self.batch.structure.runs_later:
            return -1
        masks = window.own[n] & (outcome.before[n] == self.batch.mask_token_id)
        return int(window.blocks[n][masks].min(initial=self.batch.n_columns))

    def _write(self, window: Window, outcome: Outcome) -> None:
        """Writes the tokens that a pass changed, with a trace also as events."""
        numbers, offsets = (outcome.after != outcome.before).nonzero()
        columns, tokens = window.columns[numbers, offsets], outcome.after[numbers, offsets]
        window.of.tokens[window.lanes[numbers, 0], columns] = tokens
        changes = zip(
            numbers.tolist(),
            window.slots[numbers, offsets].tolist(),
            columns.tolist(),
            outcome.before[numbers, offsets].tolist(),
            tokens.tolist(),
            outcome.confidence[numbers, offsets].tolist(),
            strict=True,
        )
        for n, slot, column, old, new, confidence in changes:
            row = window.rows[n]
            assert row is not None
            row.answer[slot] = new
            if self.options.trace:
                row.events.append(Event(row.cost.forward_passes + 1, column, old, new, confidence))

    def _is_done(self, row: Row, *, has_closed: bool, takes_step: bool) -> bool:
        """Whether a row is complete: its blocks are over, one that ended holds an end, or its answer is decided."""
        is_decided = row.decide(self.batch.end_ids, self.batch.mask_token_id)
        if row.is_over or (has_closed and self.batch.stops_at_end and row.closed_with(self.batch.end_ids)):
            return True
        if not self.call.way.exits_early:
            return False
        return is_decided or (takes_step and self._is_enough(row))

    def _is_enough(self, row: Row) -> bool:
        """Whether a row's decided tokens are enough for the caller, who is asked when there are more of them."""
        if self.call.is_decided is None or row.n_decided <= row.n_asked:
            return False
        if self.batch.on_gpu and row.cost.steps % _STEPS_BETWEEN_LOOKS:
            return False
        row.n_asked = row.n_decided
        return self.call.is_decided(row.answer[: row.n_decided])

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


def _readers(batch: Batch, n_lanes: int, logits: PlaceLogits) -> list[Reader]:
    """The readers of each pass, in the order in which they see its logits."""
    structure, call = batch.structure, batch.call
    readers: list[Reader] = [SamplerState(batch, n_lanes)]
    if structure.predicts_next and not structure.fills_next:
        readers.append(NextToken(batch, n_lanes))
    if call.label_ids:
        readers.append(FirstSlot(batch, call.label_ids))
    if batch.options.end_think_boost:
        readers.append(RaisedEndOfThinking(batch, call.end_think_ids))
    if structure.needs.history:
        readers.append(History(batch, n_lanes))
    if isinstance(logits, Hindsight):
        readers.append(logits)
    return readers
