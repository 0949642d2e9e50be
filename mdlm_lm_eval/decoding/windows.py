"""The window of a pass: which columns of each row the model runs, and at which of them tokens are proposed."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.program import Field, Kind, Numbers
from mdlm_lm_eval.decoding.rows import Plane, Rows
from mdlm_lm_eval.decoding.run import Run
from mdlm_lm_eval.model.devices import iota
from mdlm_lm_eval.model.kv_cache import CanvasCache


@dataclass(frozen=True)
class Plan:
    """A pass: the records `at` [R] that it was made for, the lanes that take part in it, and its shape.

    going: the numbers of these lanes.
    rows: the same lanes on the device, followed by padding; None if all rows are run.
    width, n_seen: how many columns each row runs, and how many it sees.
    is_wide: whether the pass runs whole canvases or prompts, of rows that otherwise run blocks.
    is_ragged: whether a mask says which keys are seen.
    cache: keys and values. cache_rows: the rows' places in it, followed by those of the unconditional canvases; None
        for all places.
    views: canvases that are run for each row. With more than one, `cache_rows` holds the row of each canvas.
    """

    at: Numbers
    going: Numbers
    rows: Tensor | None
    width: int
    n_seen: int
    is_wide: bool
    is_ragged: bool
    cache: CanvasCache | None
    cache_rows: Tensor | None
    views: int = 1


class Window(NamedTuple):
    """Each row's record [R, F], the number of its block [R] (-1 if it waits), and its columns.

    run: [R, W], columns that the model runs.
    columns, expected, asked, part: [R, G], the fields of `Plane` at the places where tokens are proposed; part is None
        without small blocks.
    outputs: [R, G], the number of the output that predicts each place's token, of R * W; None if it is the output of
        the same place.
    sees: as in `Denoiser.window_logits`.
    """

    record: Tensor
    number: Tensor
    run: Tensor
    columns: Tensor
    expected: Tensor
    asked: Tensor
    outputs: Tensor | None
    part: Tensor | None
    sees: Tensor | None = None


def window_of(run: Run, rows: Rows, plan: Plan) -> Window:
    """The window of a pass; it is the same until rows go on to their next records."""
    n_rows = len(rows.at)
    record = rows.records[iota(n_rows, run.device), rows.at]  # [R, F]
    if plan.rows is not None:
        record[len(plan.going) :, Field.WIDE] = -1  # padding, which waits
    number = record[:, Field.WIDE if plan.is_wide else Field.BLOCK]
    is_looked_up = run.is_cached and not (plan.is_wide or run.runs_later)
    window = (_looked_up if is_looked_up else _computed)(run, rows, plan, record, number)
    if window.outputs is not None:
        window = window._replace(outputs=window.outputs + iota(n_rows * plan.width, run.device)[:: plan.width, None])
    if plan.is_ragged:
        window = window._replace(sees=seen_columns(run, rows, record, window.run, plan))
    return window


def _looked_up(run: Run, rows: Rows, plan: Plan, record: Tensor, number: Tensor) -> Window:
    """The window of blocks at their own places; with a cache that runs the rest, of all columns from a block's first.

    Its outputs are numbers within each row.
    """
    next_places = int(run.predicts_next)
    planes = rows.windows[iota(len(rows.at), run.device), record[:, Field.WINDOW]]  # [R, 5, G]
    if not run.on_gpu and run.runs_blocks:
        planes = planes[..., : plan.width + next_places]
    columns, expected, _, outputs, part = planes.unbind(1)
    asked = planes[:, Plane.ASKED].view(torch.bool)[..., ::8]  # the lowest byte of each number, which is not copied
    if run.runs_blocks:
        is_straight = not (run.shift or run.predicts_next)
        of_run = columns[:, next_places:]
        return Window(record, number, of_run, columns, expected, asked, None if is_straight else outputs, part)
    of_run = _until(record, record[:, Field.START, None] + iota(plan.width, run.device), run.n_columns - 1)
    return Window(record, number, of_run, columns, expected, asked, outputs, part)


def _computed(run: Run, rows: Rows, plan: Plan, record: Tensor, number: Tensor) -> Window:
    """The window of whole canvases, of prompts after a shared prefix, of all columns up to a block's end, or of all
    blocks from a row's own on, which begins with the first column that predicts one of their tokens.

    Its outputs are numbers within each row.
    """
    n_rows, width, last = len(rows.at), plan.width, run.n_columns - 1
    columns = iota(width, run.device).expand(n_rows, width)
    if run.continues or (run.is_cached and not plan.is_wide):
        columns = columns + record[:, Field.START, None]
    if not run.is_whole:
        columns = _until(record, columns, last)
        if plan.rows is not None:
            columns[len(plan.going) :] = last  # padding repeats a row, and writes to no column of it
    block_of = rows.block_of[:, :width] if run.is_whole else rows.block_of.gather(1, columns)
    asked = block_of == number[:, None]
    if run.needs.earlier_blocks:
        asked = (block_of >= 0) & (block_of <= number[:, None])
    if run.runs_later:
        asked = (block_of >= number[:, None]) & (number >= 0)[:, None]
    expected = torch.where(asked, run.denoiser.mask_token_id, -1)
    outputs: Tensor | None = None
    if run.predicts_next or (run.shift and not run.is_whole):
        outputs = (iota(width, run.device) - int(run.shift)).clamp(min=0).expand(n_rows, width)
    small = run.options.small_block_length
    part = None if small is None else (columns - record[:, Field.START, None]) // small
    window = Window(record, number, columns, columns, expected, asked, outputs, part)
    return _with_next_token(run, rows, window) if run.predicts_next else window


def _with_next_token(run: Run, rows: Rows, window: Window) -> Window:
    """The window with a place in front, for the token after a finished block."""
    assert window.outputs is not None
    record, last, mask = window.record, run.n_columns - 1, run.denoiser.mask_token_id
    stores = ((record[:, Field.KIND] == Kind.STORE) & (window.number >= 0))[:, None]
    after = record[:, Field.STOP, None].clamp(max=last)
    is_filled = stores & (rows.slot_number.gather(1, after) >= 0) & run.fills_next
    n_run = record[:, Field.LIMIT] - record[:, Field.START] if run.continues else record[:, Field.LIMIT]
    last_output = (n_run.clamp(max=window.run.shape[1]) - 1)[:, None]
    return window._replace(
        columns=torch.cat([after.masked_fill(~is_filled, last), window.columns], 1),
        expected=torch.cat([torch.where(is_filled, mask, -1), window.expected], 1),
        asked=torch.cat([stores, window.asked & ~stores], 1),
        outputs=torch.cat([last_output, window.outputs], 1),
        part=None if window.part is None else torch.nn.functional.pad(window.part, (1, 0), value=-1),
    )


def seen_columns(run: Run, rows: Rows, record: Tensor, columns: Tensor, plan: Plan) -> Tensor:
    """Which of K columns a window's columns [R, W] see, [R, 1, K] or [R, W, K].

    A block alone sees the columns below a limit. torch's `varlen_attn` (flash) would take the limits and no mask, but
    only in half precision, and of keys [B, K, heads, D], a layout that nothing else here uses.
    """
    keys, limit = iota(plan.n_seen, run.device)[None], record[:, Field.LIMIT]  # [1, K], [R]
    if run.attention.causal_context:
        fills = (record[:, Field.KIND, None] == Kind.FILL) & (columns >= record[:, Field.START, None])  # [R, W]
        return (keys <= columns[:, :, None]) | (fills[:, :, None] & (keys < limit[:, None])[:, None])
    sees = (keys < limit[:, None])[:, None]
    if run.is_causal and (plan.is_wide or not run.runs_blocks):
        prompts = rows.facts[:, 1:2]
        block = run.attention.block_of(columns, prompts)[:, :, None]
        sees = sees & (run.attention.block_of(keys, prompts)[:, None] <= block)
    return sees


def _until(record: Tensor, columns: Tensor, last: int) -> Tensor:
    """`columns` [R, W] before the first one that nothing sees, and `last` for all others."""
    return torch.where(columns < record[:, Field.LIMIT, None], columns, last)
