"""The program of a row: a record for every pass that it can take, and which record follows which.

A device only looks records up: what a pass leaves behind decides between two successors, and nothing else is counted.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mdlm_lm_eval.decoding.blocks import Block
from mdlm_lm_eval.options import DecodingOptions

# LLaDA2.1's own default.
DEFAULT_POST_STEPS = 16


class Kind(IntEnum):
    """What a pass over a row's block is for."""

    FILL = 0  # fill masks, and edit what was filled
    EDIT = 1  # edit a block without masks
    STORE = 2  # remember the keys and values of a finished block
    OVER = 3  # nothing: the row is done, or its slot empty


class Field(IntEnum):
    """Columns of a record. Records are named by their places; -1 is the last one of all, of rows that are over."""

    STAY = 0  # the next record where masks are left, or where an edit changed something
    DONE = 1  # the next one where not; itself where the row waits for a wide pass
    WIDE_DONE = 2  # the same after a wide pass
    NUMBER = 3  # of the block
    BLOCK = 4  # the same in a narrow pass that runs it, else -1
    WIDE = 5  # the same in a wide pass
    WINDOW = 6  # of a narrow pass, among `Rows.windows`: a block's own is followed by the one that stores it
    KIND = 7
    EDITS = 8  # whether it only edits, 0 or 1
    COUNT = 9  # masks that the pass fills at least
    BACK = 10  # tokens that it takes back
    STEP = 11  # of the block
    START = 12  # first column of the block
    STOP = 13  # the one behind its last
    LIMIT = 14  # the first column that nothing sees
    BEFORE = 15  # slots before the block
    # What `Cost` counts of the pass:
    PASSES = 16
    STEPS = 17  # 0 or 1
    SIZE = 18  # positions that the pass runs through the layers


OVER = [-1] * 7 + [Kind.OVER, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0]
Numbers = npt.NDArray[Any]


class Program(NamedTuple):
    """What canvases of one shape have in common: B blocks, and the passes over them.

    bounds, is_narrow: [B, 2], columns of the blocks, and [B] bool, which of them narrow passes run. slots, numbers:
    [N], the slots that are decoded, and the numbers of their blocks. records: [S, F], in the order in which they are
    met.
    """

    blocks: Sequence[Block]
    bounds: Numbers
    is_narrow: Numbers
    slots: Numbers
    numbers: Numbers
    records: Numbers


def program_of(
    blocks: Sequence[Block],
    length: int,
    options: DecodingOptions,
    *,
    is_causal: bool,
    is_cached: bool,
    stores: bool,
    tells_next: bool,
    writes_next: bool,
) -> Program:
    """The program of a canvas of `length` tokens and its blocks.

    `stores`: whether finished blocks are run once more; `tells_next`: also those that the last edit left unchanged;
    `writes_next`: which writes the token behind them, so that a next block of that one mask is not run to fill it.
    """
    most_edits = 0
    if options.editing_threshold is not None:
        most_edits = DEFAULT_POST_STEPS if options.max_post_steps is None else options.max_post_steps
    is_planned = options.remasking in ("remdm", "rcr")
    records: list[list[int]] = []
    n_before = 0
    for number, block in enumerate(blocks):
        steps = list(zip(block.counts, block.backs or [0] * len(block.counts), strict=True))
        if not is_planned:  # behind a block's last counts 1, for all passes that follow
            steps += [(1, 0)] * (options.kl_history if options.kl_threshold is not None else 1)
        while options.kl_threshold is None and not is_planned and len(steps) > 1 and steps[-1] == steps[-2]:
            steps.pop()
        is_last = number + 1 == len(blocks)
        limit = block.stop if is_causal or options.append_blocks else length
        narrow = block.stop - block.start if options.cache != "prefix" else length - block.start
        kinds: list[tuple[Kind, int, int, int, bool]] = []  # kind, count, back, step, whether it is wide
        if block.slots:
            kinds = [(Kind.FILL, *pair, n, block.is_wide and n == 0) for n, pair in enumerate(steps)]
            if block.is_wide and len(kinds) == 1:
                kinds.append((*kinds[0][:4], False))
            kinds += [(Kind.EDIT, 1, 0, 0, False)] * most_edits
        n_fills = len(kinds) - most_edits * bool(block.slots)
        if not block.slots or (stores and not is_last):
            kinds.append((Kind.STORE, 1, 0, 0, block.is_wide and not block.slots))
        first, end = len(records), len(records) + len(kinds)
        after = -1 if is_last else end
        store = end - 1 if kinds[-1][0] is Kind.STORE else after
        if writes_next and number > 0 and block.slots == (block.start,):
            for successor in (Field.DONE, Field.WIDE_DONE):
                if records[-1][successor] == first:
                    records[-1][successor] = store
        for n, (kind, count, back, step, is_wide) in enumerate(kinds):
            itself = first + n
            stay = done = after
            if kind is Kind.FILL:
                stay = itself + 1 if n + 1 < n_fills else itself
                done = first + n_fills if most_edits else store
                if is_planned:
                    stay = done = itself + 1 if n + 1 < n_fills else after
            elif kind is Kind.EDIT:
                stay = itself + 1 if n + 1 < n_fills + most_edits else store
                done = store if tells_next else after
            size = limit if is_wide or not is_cached else narrow
            successors = stay, itself if is_wide else done, done
            window = 2 * number + (kind is Kind.STORE)
            runs = (number, -1, number, -1) if is_wide else (number, number, -1, window)
            bounds = block.start, block.stop, limit, n_before
            guided = 2 if options.cfg_scale > 0.0 else 1
            costs = 1, kind is not Kind.STORE, guided * size
            records.append([*successors, *runs, kind, kind is Kind.EDIT, count, back, step, *bounds, *costs])
        n_before += len(block.slots)
    numbers = [number for number, block in enumerate(blocks) for _ in block.slots]
    return Program(
        blocks,
        np.array([(block.start, block.stop) for block in blocks]),
        np.array([bool(block.slots) or not block.is_wide for block in blocks]),
        np.array([slot for block in blocks for slot in block.slots]),
        np.array(numbers),
        np.array(records),
    )


def path_of(program: Program) -> list[tuple[int, int]]:
    """The records that a row meets where a schedule alone decides, and how many masks its block holds in each pass."""
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
            masks -= min(masks, record[Field.COUNT])
        at = record[Field.STAY] if masks else record[Field.WIDE_DONE]
    return path
