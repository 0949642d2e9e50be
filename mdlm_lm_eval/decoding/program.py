"""The program of a row: a record for every pass that it can take, and the records that may follow each.

The device only looks records up: the outcome of a pass decides between two successors, and nothing is counted.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mdlm_lm_eval.decoding.blocks import Block, Structure
from mdlm_lm_eval.decoding.sampler import Step

Numbers = npt.NDArray[Any]


class Kind(IntEnum):
    """The purposes of a pass over a row's block."""

    FILL = 0  # fill masks, and edit filled tokens
    EDIT = 1  # edit a block without masks
    STORE = 2  # remember the keys and values of a finished block
    OVER = 3  # nothing: the row is done, or its lane is empty


class Field(IntEnum):
    """Columns of a record. A record's number is its place; -1 is the last record, that of rows that are over."""

    STAY = 0  # the next record if masks are left, or an edit changed something
    DONE = 1  # the next record otherwise; the record itself if the row waits for a wide pass
    WIDE_DONE = 2  # the same after a wide pass
    NUMBER = 3  # number of the block
    BLOCK = 4  # the same number if a narrow pass runs the block, else -1
    WIDE = 5  # the same number if a wide pass runs it, else -1
    WINDOW = 6  # number of a narrow pass's window in `Rows.windows`; each block has two, the second stores it
    KIND = 7
    FILL = 8  # the fewest masks that the pass fills
    BACK = 9  # tokens that it masks again
    STEP = 10  # number among the block's planned steps
    START = 11  # first column that a narrow pass runs: the block's, or the one before
    STOP = 12  # the column after the last one that a narrow pass runs
    LIMIT = 13  # the first column that nothing sees
    BEFORE = 14  # slots before the block
    # Costs of the pass, as in `RowCost`:
    PASSES = 15
    STEPS = 16  # 0 or 1
    SIZE = 17  # positions that the pass runs through the layers


OVER = [-1] * 7 + [Kind.OVER, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0]


class Program(NamedTuple):
    """The B blocks of canvases of one shape, and the passes over them.

    bounds: [B, 2], the first column of each block and the column after its last.
    is_narrow: [B] bool, the blocks that narrow passes run.
    slots, numbers: [N], the slots that are decoded, and the numbers of their blocks.
    records: [S, F], in the order in which a row comes to them.
    """

    blocks: Sequence[Block]
    bounds: Numbers
    is_narrow: Numbers
    slots: Numbers
    numbers: Numbers
    records: Numbers


class _Pass(NamedTuple):
    """A pass over a block, from which its record is made."""

    kind: Kind
    step: Step
    number: int
    is_wide: bool


def program_of(blocks: Sequence[Block], length: int, structure: Structure) -> Program:
    """The program of a canvas of `length` tokens with these blocks."""
    options, cache = structure.options, structure.cache
    records: list[list[int]] = []
    n_before = 0
    for number, block in enumerate(blocks):
        runs_later = structure.runs_later and bool(block.slots)
        is_last = number + 1 == len(blocks) or runs_later
        passes = _passes_over(block, structure, is_last=is_last)
        first = len(records)
        after = -1 if is_last else first + len(passes)
        store = first + len(passes) - 1 if passes[-1].kind is Kind.STORE else after
        is_run = structure.predicts_next or block.end > block.stop
        edited = store if is_run else after  # an edit that changed nothing ran the block's final tokens
        successors = _successors(passes, first, store, edited, after, structure)
        if structure.fills_next and number > 0 and block.slots == (block.start,):
            for successor in (Field.DONE, Field.WIDE_DONE):
                if records[-1][successor] == first:
                    records[-1][successor] = store
        is_cut = structure.is_causal or options.append_blocks
        start = max(0, block.start - structure.shift) if runs_later else block.start
        narrow = (length if cache.runs_rest or runs_later else block.stop) - start
        guided = 2 if options.cfg_scale > 0.0 else 1
        for each, (stay, done, wide_done) in zip(passes, successors, strict=True):
            window = 2 * number + (each.kind is Kind.STORE)
            runs = (number, -1, number, -1) if each.is_wide else (number, number, -1, window)
            stop = block.end if each.kind is Kind.STORE else block.stop
            limit = stop if is_cut and not runs_later else length
            size = limit if each.is_wide or not cache.remembers else narrow
            size -= block.start if structure.is_causal and each.is_wide else 0  # a shared prefix
            bounds = start, stop, limit, n_before
            costs = 1, each.kind is not Kind.STORE, guided * size
            records.append([stay, done, wide_done, *runs, each.kind, *each.step, each.number, *bounds, *costs])
        n_before += len(block.slots)
    return Program(
        blocks=blocks,
        bounds=np.array([(block.start, block.stop) for block in blocks]),
        is_narrow=np.array([bool(block.slots) or not block.is_wide for block in blocks]),
        slots=np.array([slot for block in blocks for slot in block.slots]),
        numbers=np.array([number for number, block in enumerate(blocks) for _ in block.slots]),
        records=np.array(records),
    )


def _passes_over(block: Block, structure: Structure, *, is_last: bool) -> list[_Pass]:
    """The passes over a block in their order; equal steps at the end are one pass, which repeats."""
    sampler = structure.sampler
    passes: list[_Pass] = []
    if block.slots:
        steps = list(block.steps)
        if not sampler.ends_as_planned:
            steps.append(Step(1))  # after the plan, each pass fills at least one mask
            while len(steps) > 1 and steps[-1] == steps[-2] and not structure.needs.step:
                steps.pop()
        passes = [_Pass(Kind.FILL, step, n, block.is_wide and n == 0) for n, step in enumerate(steps)]
        if block.is_wide and len(passes) == 1 and not sampler.ends_as_planned:
            passes.append(passes[0]._replace(is_wide=False))
        passes += [_Pass(Kind.EDIT, Step(1), 0, False)] * sampler.edit_passes(structure.options)
    if not block.slots or (structure.stores and not is_last):
        runs_text = not block.slots or block.end > block.stop
        passes.append(_Pass(Kind.STORE, Step(1), 0, structure.cache.remembers and runs_text))
    return passes


def _successors(
    passes: Sequence[_Pass], first: int, store: int, edited: int, after: int, structure: Structure
) -> list[tuple[int, int, int]]:
    """The fields STAY, DONE and WIDE_DONE of each pass over a block.

    Its records begin at `first`. `store` is the one that stores it, or else `after`, the one of the next block.
    `edited` follows a pass that could edit and changed nothing.
    """
    n_fills = sum(each.kind is Kind.FILL for each in passes)
    n_edits = sum(each.kind is Kind.EDIT for each in passes)
    found: list[tuple[int, int, int]] = []
    for n, each in enumerate(passes):
        itself = first + n
        stay = done = after
        if each.kind is Kind.FILL and structure.sampler.ends_as_planned:
            stay = done = itself + 1 if n + 1 < n_fills else store
        elif each.kind is Kind.FILL:
            stay = itself + 1 if n + 1 < n_fills else itself
            done = first + n_fills if n_edits else store
        elif each.kind is Kind.EDIT:
            stay = itself + 1 if n + 1 < n_fills + n_edits else store
            done = edited
        found.append((stay, itself if each.is_wide else done, done))
    return found


def path_of(program: Program) -> list[tuple[int, int]]:
    """The records that a row comes to if its plan alone decides, each with the number of masks in its block then."""
    path: list[tuple[int, int]] = []
    records: list[list[int]] = program.records.tolist()
    at, number, masks = 0, -1, 0
    while at != -1:
        record = records[at]
        if record[Field.NUMBER] != number:
            number = record[Field.NUMBER]
            masks = len(program.blocks[number].slots)
        path.append((at, masks))
        if record[Field.KIND] == Kind.FILL:
            masks -= min(masks, record[Field.FILL])
        at = record[Field.STAY] if masks else record[Field.WIDE_DONE]
    return path
