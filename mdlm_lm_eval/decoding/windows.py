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

    rows: the same lanes on the device, then padding; None where all rows are run. cache, cache_rows: keys and values,
    and the rows' places there with those of unconditional canvases, None for all. width, n_seen: columns that each row
    runs, and that it sees. is_wide: whether it runs whole canvases beside rows that run blocks. is_ragged: whether keys
    are masked. views: canvases of each row; with more than one, `cache_rows` has the row of each.
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
    """Each row's record [R, F], the number of its block [R] (-1 where it waits), and its columns.

    stay, done: [R], the records that may follow. has_before: [R], whether a block stands before it, where that matters.
    run: columns [R, W] that the model runs. columns, expected, asked, part: [R, G], the fields of `Plane` where tokens
    are proposed; part is None without small blocks. outputs: [R, G], which of the R * W outputs predicts the token;
    None where it is that of the same place. sees: as of `Denoiser.window_logits`.
    """

    run: Tensor
    columns: Tensor
    expected: Tensor
    asked: Tensor
    outputs: Tensor | None
    part: Tensor | None
    record: Tensor
    number: Tensor
    stay: Tensor
    done: Tensor
    has_before: Tensor | None
    sees: Tensor | None


class _Places(NamedTuple):
    """The fields of `Window` that differ between narrow and wide passes."""

    run: Tensor
    columns: Tensor
    expected: Tensor
    asked: Tensor
    outputs: Tensor | None
    part: Tensor | None


def window_of(run: Run, rows: Rows, plan: Plan, sees: Tensor | None) -> Window:
    """The window of a pass; it is the same until rows go on to their next records.

    `sees` is that of an earlier pass over the same rows, where it does not change with their records.
    """
    n_rows, is_wide = len(rows.at), plan.is_wide
    record = rows.records[iota(n_rows, run.device), rows.at]  # [R, F]
    if plan.rows is not None:
        record[len(plan.going) :, Field.WIDE] = -1  # padding, which waits
    number = record[:, Field.WIDE if is_wide else Field.BLOCK]
    if run.is_cached and not (is_wide or run.runs_later):
        places = _narrow_places(run, rows, plan, record)
    else:
        places = _wide_places(run, rows, plan, record, number)
    outputs = places.outputs
    if outputs is not None:
        outputs = outputs + iota(n_rows * plan.width, run.device)[:: plan.width, None]
    if plan.is_ragged and (sees is None or sees.shape[2] != plan.n_seen):
        sees = seen_columns(run, rows, record, places.run, plan)
    return Window(
        *places._replace(outputs=outputs),
        record=record,
        number=number,
        stay=record[:, Field.STAY],
        done=record[:, Field.WIDE_DONE if is_wide else Field.DONE],
        has_before=number > 0 if run.predicts_next and not run.fills_next else None,
        sees=sees if plan.is_ragged else None,
    )


def _narrow_places(run: Run, rows: Rows, plan: Plan, record: Tensor) -> _Places:
    """Blocks at their own places, looked up; with a cache that runs the rest, all columns from a block's first one."""
    next_places = int(run.predicts_next)
    planes = rows.windows[iota(len(rows.at), run.device), record[:, Field.WINDOW]]  # [R, 5, G]
    if not run.on_gpu and run.runs_blocks:
        planes = planes[..., : plan.width + next_places]
    columns, expected, _, outputs, part = planes.unbind(1)
    asked = flags(planes)[:, Plane.ASKED]
    if run.runs_blocks:
        is_straight = not (run.shift or run.predicts_next)
        return _Places(columns[:, next_places:], columns, expected, asked, None if is_straight else outputs, part)
    from_start = record[:, Field.START, None] + iota(plan.width, run.device)
    return _Places(_until(record, from_start, run.sizes.columns - 1), columns, expected, asked, outputs, part)


def _wide_places(run: Run, rows: Rows, plan: Plan, record: Tensor, number: Tensor) -> _Places:
    """Columns from the first one on: of whole canvases, of prompts after what they share, or up to a block's end.

    Of blocks whose later ones are run with them, from the first column that predicts one of theirs.
    """
    n_rows, width, last = len(rows.at), plan.width, run.sizes.columns - 1
    columns = iota(width, run.device).expand(n_rows, width)
    if run.shares or (run.is_cached and not plan.is_wide):
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
    small = run.options.small_block_length
    places = _Places(
        run=columns,
        columns=columns,
        expected=torch.where(asked, run.denoiser.mask_token_id, -1),
        asked=asked,
        outputs=None,
        part=None if small is None else (columns - record[:, Field.START, None]) // small,
    )
    if run.predicts_next:
        return _with_next_token(run, rows, record, number, places)
    if run.shift and not run.is_whole:
        return places._replace(outputs=(iota(width, run.device) - 1).clamp(min=0).expand(n_rows, width))
    return places


def _with_next_token(run: Run, rows: Rows, record: Tensor, number: Tensor, places: _Places) -> _Places:
    """The same with a place in front, for the token after a finished block."""
    last, width, mask = run.sizes.columns - 1, places.run.shape[1], run.denoiser.mask_token_id
    stores = ((record[:, Field.KIND] == Kind.STORE) & (number >= 0))[:, None]
    after = record[:, Field.STOP, None].clamp(max=last)
    is_filled = stores & (rows.slot_number.gather(1, after) >= 0) & run.fills_next
    n_run = record[:, Field.LIMIT] - record[:, Field.START] if run.shares else record[:, Field.LIMIT]
    last_output = (n_run.clamp(max=width) - 1)[:, None]
    outputs = (iota(width, run.device) - int(run.shift)).clamp(min=0).expand(len(after), width)
    part = None if places.part is None else torch.nn.functional.pad(places.part, (1, 0), value=-1)
    return places._replace(
        columns=torch.cat([after.masked_fill(~is_filled, last), places.columns], 1),
        expected=torch.cat([torch.where(is_filled, mask, -1), places.expected], 1),
        asked=torch.cat([stores, places.asked & ~stores], 1),
        outputs=torch.cat([last_output, outputs], 1),
        part=part,
    )


def seen_columns(run: Run, rows: Rows, record: Tensor, columns: Tensor, plan: Plan) -> Tensor:
    """Which of K columns a window's columns [R, W] see, [R, 1, K] or [R, W, K].

    A block alone sees the columns below a limit. torch's `varlen_attn` (flash) would take the limits and no mask, but
    only in half precision, and of keys [B, K, heads, D], which nothing else here wants.
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


def flags(table: Tensor) -> Tensor:
    """The same table of numbers [..., C] as bool, where they are 0 or 1: its lowest bytes, which no kernel copies."""
    return table.view(torch.bool)[..., ::8]


def _until(record: Tensor, columns: Tensor, last: int) -> Tensor:
    """`columns` [R, W] below the first one that nothing sees, and `last` for all others."""
    return torch.where(columns < record[:, Field.LIMIT, None], columns, last)
