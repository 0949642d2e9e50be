"""The window of a pass: which columns of each row the model runs, what they see, and where tokens may be written.

In shapes, P are the rows of a pass (on a GPU with padding), W the columns that the model runs for each, and C those at
which tokens may be written: the same, or with one more in front, for the token after a finished block. T is the number
of columns of a canvas, of which the last is no row's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.rows import NO_BLOCK, Extent, Lanes, Numbers, Row
from mdlm_lm_eval.model.devices import bucket, iota, to_device, up_to_keys, up_to_positions

# Padding sees one column, as attention of rows that see nothing would be NaN.
_NOWHERE = Extent(0, 0, 1, 0, NO_BLOCK, 0, NO_BLOCK, stores=False, n_prompt=0)


class Window:
    """The rows and columns of a pass. It is the same until a row of it runs other columns, or is of another stage.

    rows: [P], None for padding and for rows that wait.
    of: the lanes in which the rows are.
    lanes, columns: [P, 1] and [P, C], where the tokens stand.
    slots, blocks: [P, C], as in `Lanes`.
    limits, starts, numbers, before: [P, 1], as in `Extent`.
    own: [P, C] bool, the places whose masks the pass may fill.
    is_next: [P] bool, the rows whose first place is that of a token after a finished block, which the pass predicts.
    outputs: [P, C], the number of the output, of P * W, that predicts each token.
    is_wide: whether it runs whole canvases or text, of rows that otherwise run blocks.
    run_columns, sees, cache_rows: on the device, the columns [P, W] that the model runs, and as in
        `Denoiser.window_logits` what they see, and the rows of the cache.
    n_seen: as in `Denoiser.window_logits`.
    """

    def __init__(
        self, batch: Batch, lanes: Lanes, rows: Sequence[Row | None], *, is_wide: bool, cache_rows: Tensor | None = None
    ) -> None:
        self.rows, self.of, self.is_wide, self.cache_rows = rows, lanes, is_wide, cache_rows
        last = batch.n_columns - 1
        extents = np.array([_NOWHERE if row is None else row.extent for row in rows])
        first, end, self.limits, self.starts, self.numbers, self.before, after, stores, prompt = extents.T[:, :, None]
        n_run, n_seen = _shape(batch, first, end, self.limits, is_wide=is_wide)
        run = first + np.arange(n_run)
        self.columns = run = np.where(run < end, run, last)
        shift = 0 if batch.is_whole else int(batch.shift)  # of whole canvases, the denoiser shifts
        outputs = (np.arange(n_run) - shift).clip(0)[None].repeat(len(rows), 0)
        self.is_next = np.zeros(len(rows), bool)
        if batch.predicts_next:
            self.is_next = (after[:, 0] >= 0) if batch.fills_next else stores[:, 0] > 0
            self.columns = np.concatenate([np.where(after >= 0, after, last), run], 1)
            outputs = np.concatenate([(end - first - 1).clip(0), outputs], 1)
        self.outputs = outputs + np.arange(len(rows))[:, None] * n_run
        self.lanes = np.array([0 if row is None else row.lane for row in rows])[:, None]
        self.slots, self.blocks = (lanes.columns[name][self.lanes, self.columns] for name in ("slot", "block"))
        self.own: Numbers = self.blocks == self.numbers
        if batch.way.needs.earlier_blocks:
            self.own = (self.blocks >= 0) & (self.blocks <= self.numbers)
        if batch.way.needs.later_blocks:
            self.own = (self.blocks >= self.numbers) & (self.numbers >= 0)
        if batch.fills_next:
            self.own[:, 0] = self.is_next
        self.run_columns = as_tensor(run, batch.device)
        self.sees = _sees(batch, self.run_columns, self.limits, self.starts, prompt, n_seen, is_wide=is_wide)
        self.n_seen = None if is_wide and not first.any() else n_seen


def next_window(batch: Batch, lanes: Lanes) -> Window:
    """The window of a wide pass over the rows that need one, or else of a pass over all others.

    With a cache that is renewed, wide passes run once half of the rows need one.
    """
    rows = [row for row in lanes.rows if row is not None]
    wide = [row for row in rows if row.is_wide]
    if wide and (not batch.way.cache.is_renewed or 2 * len(wide) >= len(rows)):
        return wide_window(batch, lanes, wide)
    narrow = [None if row is None or row.is_wide else row for row in lanes.rows]
    return Window(batch, lanes, narrow, is_wide=False)


def wide_window(batch: Batch, lanes: Lanes, rows: Sequence[Row]) -> Window:
    """The window of a pass over the whole canvases, or the text, of some rows; on a GPU with padding."""
    if len(rows) == len(lanes):
        return Window(batch, lanes, rows, is_wide=True)
    n_more = bucket(len(rows), batch.device, least=2) - len(rows)
    cache_rows = lanes.in_cache([*(row.lane for row in rows), *[rows[-1].lane] * n_more])
    return Window(batch, lanes, [*rows, *[None] * n_more], is_wide=True, cache_rows=cache_rows)


def _shape(batch: Batch, first: Numbers, end: Numbers, limit: Numbers, *, is_wide: bool) -> tuple[int, int]:
    """How many columns each row runs, and how many it sees; on a GPU few different numbers."""
    runs_block = batch.runs_blocks and not is_wide
    if batch.options.batch_invariant:  # the same shape in all passes
        n_seen = batch.n_columns - 1
        return (batch.widest_block if runs_block else n_seen), n_seen
    width, n_seen = int((end - first).max()), int(limit.max())
    is_cached = batch.way.cache.remembers
    if not batch.on_gpu:
        return width, n_seen if is_cached else width
    if not is_cached:
        width = min(up_to_positions(width), batch.n_columns - 1)
        return width, width
    n_seen = min(up_to_keys(n_seen), batch.n_columns)
    if is_wide and not first.any():
        return n_seen, n_seen
    return (batch.widest_block if runs_block else up_to_positions(width)), n_seen


def _sees(
    batch: Batch, run: Tensor, limits: Numbers, starts: Numbers, prompts: Numbers, n_seen: int, *, is_wide: bool
) -> Tensor | None:
    """Which of `n_seen` columns the columns `run` [P, W] see, [P, 1, K] or [P, W, K] bool; None if all see all.

    The columns of a block alone see the same ones, those below a limit.
    """
    attention, device = batch.way.attention, batch.device
    sees_by_block = attention.is_block_causal and (is_wide or not batch.runs_blocks)
    is_ragged = bool((limits != n_seen).any()) or attention.causal_context or batch.options.batch_invariant
    if not (is_ragged or sees_by_block or (attention.is_block_causal and batch.on_gpu)):
        return None
    keys = iota(n_seen, device)[None]  # [1, K]
    sees = (keys < as_tensor(limits, device))[:, None]
    if attention.causal_context:  # only the block that is filled sees its later tokens
        is_filled = (run >= as_tensor(starts, device))[:, :, None]
        return (keys <= run[:, :, None]) | (is_filled & sees)
    if sees_by_block:
        length = as_tensor(prompts, device)
        sees = sees & (attention.block_of(keys, length)[:, None] <= attention.block_of(run, length)[:, :, None])
    return sees


def as_tensor(values: Numbers, device: torch.device) -> Tensor:
    """Numbers on a device; nothing waits for the copy."""
    return to_device(torch.from_numpy(np.ascontiguousarray(values)), device)


class Asked:
    """The N places of a window at which a pass asks the model.

    tokens: [P, C], those of the window before the pass.
    masks, filled: [P, C] bool, the masks that it may fill, and the filled tokens among its places.
    indices: [N], the places' numbers in the flattened window.
    pass_row, offset: [N], the number of each one's row in the pass, and its number in this row.
    lane, slot: [N], the lane that each is in, and its number among the slots of its row.
    """

    def __init__(self, batch: Batch, window: Window) -> None:
        self.window, needs, options = window, batch.way.needs, batch.options
        self.tokens = window.of.tokens[window.lanes, window.columns]
        is_mask = self.tokens == batch.mask_token_id
        self.masks, self.filled = window.own & is_mask, window.own & ~is_mask
        if (small := options.small_block_length) is not None:  # those of the first small block that holds masks
            part = np.where(self.masks, (window.columns - window.starts) // small, batch.n_columns)
            self.masks &= part == part.min(1, keepdims=True)
        elif window.is_wide and batch.shift:  # no later window holds the logits of the first mask
            self.masks &= self.masks.cumsum(1) == 1
        wanted = self.masks | self.filled if needs.proposals_for_filled else self.masks.copy()
        if window.is_next.any():
            self.filled[:, 0] = False
            wanted[:, 0] |= window.is_next
        if needs.history:  # the next block's first pass is compared with this one
            wanted |= (window.blocks == window.numbers + 1) & (window.numbers >= 0)
        if options.max_thinking_tokens is not None:  # its end stays where it is written
            self.filled &= self.tokens != batch.call.end_think_ids[0]
        self.indices = np.flatnonzero(wanted)
        self.pass_row, self.offset = np.divmod(self.indices, self.tokens.shape[1])
        self.lane, self.slot = window.lanes[self.pass_row, 0], window.slots.ravel()[self.indices]

    def onto_window(self, values: Numbers) -> Numbers:
        """Values [N] at the places of the window [P, C], and zeros elsewhere."""
        found = np.zeros(self.tokens.size, values.dtype)
        found[self.indices] = values
        return found.reshape(self.tokens.shape)
