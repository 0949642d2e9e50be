"""The window of a pass: which columns of each row the model runs, what they see, and where tokens may be written.

In shapes, P are the rows of a pass (on a GPU with padding), W the columns that the model runs for each, and C those at
which tokens may be written: the same, or with one more in front, for the token after a finished block. T is the number
of columns of a canvas, of which the last is no row's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.lanes import Lanes, Numbers
from mdlm_lm_eval.decoding.rows import Extent, Row, Stage
from mdlm_lm_eval.model.devices import bucket, iota, to_device, up_to_keys, up_to_positions

_NO_BLOCK = -9
# Padding sees one column, as attention of rows that see nothing would be NaN.
_NOWHERE = Extent(0, 0, 1, 0)


class Window(NamedTuple):
    """The rows and columns of a pass. It is the same until a row of it runs other columns, or is of another stage.

    rows: [P], None for padding and for rows that wait.
    of: the lanes in which the rows are.
    lanes, columns: [P, 1] and [P, C], where the tokens stand.
    slots, blocks: [P, C], as in `Lanes`.
    numbers, before: [P, 1], the number of each row's block, and the slots before it; no block is decoded while one is
        stored.
    starts: [P, 1], the first column of the block.
    own: [P, C] bool, the places whose masks the pass may fill.
    is_next: [P] bool, the rows whose first place is that of a token after a finished block, which the pass predicts.
    outputs: [P, C], the number of the output, of P * W, that predicts each token.
    is_wide: whether it runs whole canvases or text, of rows that otherwise run blocks.
    run_columns, sees, cache_rows: on the device, the columns [P, W] that the model runs, and as in
        `Denoiser.window_logits` what they see, and the rows of the cache.
    n_seen: as in `Denoiser.window_logits`.
    """

    rows: Sequence[Row | None]
    of: Lanes
    lanes: Numbers
    columns: Numbers
    slots: Numbers
    blocks: Numbers
    numbers: Numbers
    before: Numbers
    starts: Numbers
    own: Numbers
    is_next: Numbers
    outputs: Numbers
    is_wide: bool
    run_columns: Tensor
    sees: Tensor | None
    cache_rows: Tensor | None
    n_seen: int | None


def next_window(batch: Batch, lanes: Lanes) -> Window:
    """The window of a wide pass over the rows that need one, or else of a pass over all others.

    With a cache that waits, wide passes run once half of the rows need one.
    """
    rows = [row for row in lanes.rows if row is not None]
    wide = [row for row in rows if row.is_wide]
    if wide and (not batch.structure.cache.waits or 2 * len(wide) >= len(rows)):
        return wide_window(batch, lanes, wide)
    narrow = [None if row is None or row.is_wide else row for row in lanes.rows]
    return _window(batch, lanes, narrow, None, is_wide=False)


def wide_window(batch: Batch, lanes: Lanes, rows: Sequence[Row]) -> Window:
    """The window of a pass over the whole canvases, or the text, of some rows; on a GPU with padding."""
    if len(rows) == len(lanes):
        return _window(batch, lanes, rows, None, is_wide=True)
    n_more = bucket(len(rows), batch.device, least=2) - len(rows)
    cache_rows = lanes.in_cache([*(row.lane for row in rows), *[rows[-1].lane] * n_more])
    return _window(batch, lanes, [*rows, *[None] * n_more], cache_rows, is_wide=True)


def _window(
    batch: Batch, lanes: Lanes, rows: Sequence[Row | None], cache_rows: Tensor | None, *, is_wide: bool
) -> Window:
    structure, last = batch.structure, batch.n_columns - 1
    extents = np.array([_NOWHERE if row is None else row.extent for row in rows])
    n_run, n_seen = _shape(batch, extents, is_wide=is_wide)
    first, end, _, starts = extents.T[:, :, None]  # [P, 1] each
    run = first + np.arange(n_run)
    columns = run = np.where(run < end, run, last)
    shift = 0 if structure.is_whole else int(structure.shift)  # of whole canvases, the denoiser shifts
    outputs = (np.arange(n_run) - shift).clip(0)[None].repeat(len(rows), 0)
    is_next = np.zeros(len(rows), bool)
    if structure.predicts_next:
        after, is_next = _next_tokens(batch, rows)
        columns = np.concatenate([after, run], 1)
        outputs = np.concatenate([(end - first - 1).clip(0), outputs], 1)
    of_lanes = np.array([0 if row is None else row.lane for row in rows])[:, None]
    numbers = np.array([_NO_BLOCK if row is None or row.stage is Stage.STORE else row.number for row in rows])[:, None]
    blocks = lanes.blocks[of_lanes, columns]
    on_device = as_tensor(run, batch.device)
    sees_itself = is_wide and not first.any()
    return Window(
        rows=rows,
        of=lanes,
        lanes=of_lanes,
        columns=columns,
        slots=lanes.slots[of_lanes, columns],
        blocks=blocks,
        numbers=numbers,
        before=np.array([0 if row is None else row.n_before for row in rows])[:, None],
        starts=starts,
        own=_own(batch, blocks, numbers, is_next),
        is_next=is_next,
        outputs=outputs + np.arange(len(rows))[:, None] * n_run,
        is_wide=is_wide,
        run_columns=on_device,
        sees=_sees(batch, rows, on_device, extents, n_seen, is_wide=is_wide),
        cache_rows=cache_rows,
        n_seen=None if sees_itself else n_seen,
    )


def _next_tokens(batch: Batch, rows: Sequence[Row | None]) -> tuple[Numbers, Numbers]:
    """For each row the column [P, 1] of the token that its finished block predicts and that is filled at once.

    It is T - 1 if there is none. Also whether [P] the pass predicts such a token, to fill it at once or in the next
    block.
    """
    last = batch.n_columns - 1
    stored = [None if row is None or row.stage is not Stage.STORE else row for row in rows]
    if not batch.structure.fills_next:
        return np.full((len(rows), 1), last), np.array([row is not None for row in stored])
    after = [last if row is None or row.block.end not in row.canvas.slots else row.block.end for row in stored]
    found = np.array(after)[:, None]
    return found, found[:, 0] < last


def _own(batch: Batch, blocks: Numbers, numbers: Numbers, is_next: Numbers) -> Numbers:
    """Whether the pass may fill masks at places [P, C] of these `blocks`, for rows at blocks `numbers` [P, 1]."""
    needs = batch.structure.needs
    own: Numbers = blocks == numbers
    if needs.earlier_blocks:
        own = (blocks >= 0) & (blocks <= numbers)
    if needs.later_blocks:
        own = (blocks >= numbers) & (numbers >= 0)
    if batch.structure.fills_next:
        own[:, 0] = is_next
    return own


def _shape(batch: Batch, extents: Numbers, *, is_wide: bool) -> tuple[int, int]:
    """How many columns each row runs, and how many it sees; on a GPU few different numbers."""
    first, end, limit, _ = extents.T
    runs_block = batch.structure.runs_blocks and not is_wide
    if batch.options.batch_invariant:  # the same shape in all passes
        n_seen = batch.n_columns - 1
        return (batch.widest_block if runs_block else n_seen), n_seen
    width, n_seen = int((end - first).max()), int(limit.max())
    is_cached = batch.structure.cache.remembers
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
    batch: Batch, rows: Sequence[Row | None], run: Tensor, extents: Numbers, n_seen: int, *, is_wide: bool
) -> Tensor | None:
    """Which of `n_seen` columns the columns `run` [P, W] see, [P, 1, K] or [P, W, K] bool; None if all see all.

    The columns of a block alone see the same ones, those below a limit.
    """
    structure, attention, device = batch.structure, batch.structure.attention, batch.device
    limits, sees_by_block = extents[:, 2], structure.is_causal and (is_wide or not structure.runs_blocks)
    is_ragged = bool((limits != n_seen).any()) or attention.causal_context or batch.options.batch_invariant
    if not (is_ragged or sees_by_block or (structure.is_causal and batch.on_gpu)):
        return None
    keys, limit = iota(n_seen, device)[None], as_tensor(limits, device)[:, None]  # [1, K], [P, 1]
    sees = (keys < limit)[:, None]
    if attention.causal_context:
        # Only the block that is denoised sees its later tokens.
        fills = [row is not None and row.stage is Stage.FILL for row in rows]
        starts = as_tensor(np.where(fills, extents[:, 3], batch.n_columns), device)[:, None]
        return (keys <= run[:, :, None]) | ((run >= starts)[:, :, None] & sees)
    if sees_by_block:
        lengths = [0 if row is None else row.canvas.prompt_length for row in rows]
        prompts = as_tensor(np.array(lengths), device)[:, None]
        sees = sees & (attention.block_of(keys, prompts)[:, None] <= attention.block_of(run, prompts)[:, :, None])
    return sees


def as_tensor(values: Numbers, device: torch.device) -> Tensor:
    """Numbers on a device; nothing waits for the copy."""
    return to_device(torch.from_numpy(np.ascontiguousarray(values)), device)
