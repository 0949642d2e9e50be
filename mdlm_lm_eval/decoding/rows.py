"""The rows that are being decoded: their state on the model's device, and what the host knows of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.blocks import Block
from mdlm_lm_eval.decoding.canvas import Canvas, Filled
from mdlm_lm_eval.decoding.program import OVER, Field, Kind, Record
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.options import DecodingOptions

Numbers = npt.NDArray[Any]

# What a pass changes.
_CHANGING = ("at", "best", "steps", "filled", "tokens", "remembered", "before", "divergences", "passes", "trace")


class Plane(IntEnum):
    """What `Rows.windows` say of the G places of a window: those of a block's columns, T - 1 behind its last one.

    Where blocks tell what stands behind them, the first place is that of the column behind the block.
    """

    COLUMN = 0
    EXPECTED = 1  # the mask token where the pass may fill a mask, -1 elsewhere
    ASKED = 2  # 1 where logits are needed without a mask, too
    OUTPUT = 3  # which of the outputs, from the block's first one on, tells the token
    PART = 4  # the small block


@dataclass
class Rows:
    """R rows on canvases of at most T - 1 tokens; the last column is no row's.

    at: [R], the record of the pass to come.
    best: [R] float32, NaN where logits of the last pass were not finite.
    steps: [R], denoising steps so far, counted where numbers are drawn.
    filled: [R], of WINO: masks that the pass before filled.
    tokens: [R, T].
    remembered: [R, T] float32, the priority that a token had when it was filled; [R, 1] without remasking.
    before, divergences: [R, N + 1, V] and [R, H, T], of KLASS: the distributions of the pass before in every slot, and
        how much they changed in the last passes. [R, 1, 1] else.
    passes, trace: [R], passes so far, and [R, 3, T] float32, of each token: the pass that wrote it, its confidence, how
        often the slot was written; [R, 3, 1] without that option.
    records: [R, S, F], the row's program; the last record is that of rows that are over.
    windows: [R, 2 B + 1, 5, G], of narrow passes, what `Plane` says; the last one is empty. [R, 1, 5, 0] where every
        pass runs the columns from the first one on.
    block_of, slot_number: [R, T], a slot's block (-2 where there is no slot) and its place among the row's slots (-1).
    random_numbers: [R, T] float32 in [0, 1), for rules that draw an order.
    prompt: [R, T] bool, what classifier-free guidance masks.
    facts: [R, 3] of each row: length, tokens of prompt, seed.
    shown: [R, N], columns whose tokens the host looks at, those first that come back; T - 1 behind the last.
    """

    at: Tensor
    best: Tensor
    steps: Tensor
    filled: Tensor
    tokens: Tensor
    remembered: Tensor
    before: Tensor
    divergences: Tensor
    passes: Tensor
    trace: Tensor
    records: Tensor
    windows: Tensor
    block_of: Tensor
    slot_number: Tensor
    random_numbers: Tensor
    prompt: Tensor
    facts: Tensor
    shown: Tensor

    def of(self, rows: Tensor) -> Self:
        """A copy of some rows."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Tensor, others: "Rows", *, changes_only: bool = False) -> None:
        """Writes rows, all that there is to know of them, or what a pass changes."""
        for name in _CHANGING if changes_only else [field.name for field in fields(self)]:
            getattr(self, name).index_copy_(0, rows, getattr(others, name))

    def note(self, columns: Tensor, written: Tensor, confidence: Tensor) -> None:
        """Traces what the next pass wrote where `written` [R, W], with this `confidence` [R, W]."""
        at = columns.expand_as(written)[:, None].expand(-1, 3, -1)  # [R, 3, W]
        before = self.trace.gather(2, at)
        now = torch.stack([(self.passes + 1.0)[:, None].expand_as(confidence), confidence, before[:, 2] + 1], 1)
        self.trace.scatter_(2, at, now.where(written[:, None], before))

    def traced(self, row: int, n: int) -> tuple[Filled, ...]:
        """The first `n` returned tokens of a row; waits for the device."""
        numbers = self.trace[row][:, self.shown[row, :n]].tolist()
        return tuple(Filled(int(by), sure, max(0, int(writes) - 1)) for by, sure, writes in zip(*numbers, strict=True))

    def to(self, device: torch.device) -> Self:
        """The same on a device; nothing waits for the copies."""
        return type(self)(*(to_device(getattr(self, field.name), device) for field in fields(self)))


@dataclass(frozen=True)
class Sizes:
    """Sizes that all rows of a run share: columns T, blocks B, records S, shown tokens N, slots, vocabulary V.

    window: the width W of blocks in narrow passes, 0 where there are none. tells, writes: whether a stored block tells
    the token behind it, and whether that is written at once. shift: of the model's outputs.
    """

    columns: int
    blocks: int
    records: int
    shown: int
    slots: int
    vocabulary: int
    window: int
    tells: bool
    writes: bool
    shift: bool


def rows_of(
    canvases: Sequence[tuple[Canvas, Sequence[Block], Sequence[Record]]],
    options: DecodingOptions,
    sizes: Sizes,
    pad_token_id: int,
    mask_token_id: int,
) -> Rows:
    """The rows of canvases and their blocks as they begin, on the host. Their seeds draw the orders of random rules."""
    n, is_random = len(canvases), unmasking_rule(options.unmasking).is_random
    compares, takes_back = options.kl_threshold is not None, options.remasking != "none"
    rows = Rows(
        at=torch.zeros(n, dtype=torch.long),
        best=torch.zeros(n),
        steps=torch.zeros(n, dtype=torch.long),
        filled=torch.zeros(n, dtype=torch.long),
        tokens=torch.full((n, sizes.columns), pad_token_id),
        remembered=torch.zeros(n, sizes.columns if takes_back else 1),
        before=torch.zeros(n, *((sizes.slots + 1, sizes.vocabulary) if compares else (1, 1))),
        divergences=torch.zeros(n, *((options.kl_history, sizes.columns) if compares else (1, 1))),
        passes=torch.zeros(n, dtype=torch.long),
        trace=torch.zeros(n, 3, sizes.columns if options.trace else 1),
        records=torch.tensor(OVER).repeat(n, sizes.records + 1, 1),
        windows=torch.full(
            (
                n,
                2 * sizes.blocks + 1 if sizes.window else 1,
                len(Plane),
                (sizes.window + sizes.tells) * bool(sizes.window),
            ),
            -1,
        ),
        block_of=torch.full((n, sizes.columns), -2),
        slot_number=torch.full((n, sizes.columns), -1),
        random_numbers=torch.zeros(n, sizes.columns),
        prompt=torch.zeros(n, sizes.columns, dtype=torch.bool),
        facts=torch.zeros(n, 3, dtype=torch.long),
        shown=torch.full((n, sizes.shown), sizes.columns - 1),
    )
    rows.windows[:, :, Plane.COLUMN] = sizes.columns - 1
    rows.windows[:, :, Plane.ASKED] = 0
    rows.windows[:, :, Plane.OUTPUT, int(sizes.tells) :] = (torch.arange(sizes.window) - int(sizes.shift)).clamp(min=0)
    array = {field.name: getattr(rows, field.name).numpy() for field in fields(rows)}  # the same memory
    for row, (canvas, blocks, records) in enumerate(canvases):
        slots = list(canvas.slots)
        array["tokens"][row, : len(canvas.token_ids)] = canvas.token_ids
        array["slot_number"][row, slots] = range(len(slots))
        array["prompt"][row, : canvas.prompt_length] = True
        array["prompt"][row, slots] = False
        if is_random:
            generator = torch.Generator().manual_seed(canvas.seed)
            rows.random_numbers[row, slots] = torch.rand(len(slots), generator=generator)
        for number, block in enumerate(blocks):
            array["block_of"][row, list(block.slots)] = number
            if sizes.window and (block.slots or not block.is_wide):
                length = block.stop - block.start
                fills, stores = windows = array["windows"][row, 2 * number : 2 * number + 2]  # [2, 5, G]
                windows[:, Plane.COLUMN, sizes.tells : sizes.tells + length] = range(block.start, block.stop)
                places = [slot - block.start + sizes.tells for slot in block.slots]
                fills[Plane.EXPECTED, places] = mask_token_id
                fills[Plane.ASKED, places] = options.editing_threshold is not None
                fills[Plane.PART] = np.arange(-sizes.tells, sizes.window) // (
                    options.small_block_length or sizes.window
                )
                if sizes.tells:
                    stores[Plane.ASKED, 0], windows[:, Plane.OUTPUT, 0] = 1, length - 1
                    if sizes.writes and block.stop in slots:
                        stores[Plane.COLUMN, 0], stores[Plane.EXPECTED, 0] = block.stop, mask_token_id
        array["records"][row, : len(records)] = records
        array["facts"][row] = len(canvas.token_ids), canvas.prompt_length, canvas.seed
        shown = slots[: sizes.shown]
        array["shown"][row, : len(shown)] = shown
    return rows


class Look(NamedTuple):
    """What a pass left of the rows that were there, on its way to the host: `sent` [R, 2 + N] once `event` is over.

    places, owners: of the slots of today, their rows in `sent`, and the canvases that these held.
    """

    number: int
    is_wide: bool
    sent: Tensor
    event: Any
    places: Numbers
    owners: Numbers


@dataclass
class Slots:
    """R slots; all arrays begin with R.

    owners: which canvas each holds, -1 for none.
    at: the record `Rows.at` as last seen. records: [R, F], these records themselves.
    launched, n_run: the last wide pass of the row, and how many passes it took.
    costs: [R, 3], what `Cost` holds.
    n_read, n_returned: tokens that the caller was asked about, and that come back.
    shown_blocks: [R, N], blocks of the tokens that the host sees.
    tables, paths: the rows' programs, and what they meet of them where a schedule alone decides.
    """

    owners: Numbers
    at: Numbers
    records: Numbers
    launched: Numbers
    n_run: Numbers
    costs: Numbers
    n_read: Numbers
    n_returned: Numbers
    shown_blocks: Numbers
    tables: Numbers
    paths: Numbers

    @classmethod
    def empty(cls, n: int, sizes: Sizes, longest_path: int) -> Self:
        """No slot of `n` holds a canvas."""
        nothing, zeros = np.full(n, -1), np.zeros(n, int)
        tables = np.tile(OVER, (n, sizes.records + 1, 1))
        shown = np.full((n, sizes.shown), -2)
        paths = np.full((n, longest_path + 1, 2), -1)
        arrays = (nothing, nothing, tables[:, -1], nothing, zeros, np.zeros((n, 3), int), zeros, zeros, shown, tables)
        return cls(*(array.copy() for array in (*arrays, paths)))

    def of(self, kept: Numbers) -> Self:
        """A copy of some slots."""
        return type(self)(*(getattr(self, field.name)[kept] for field in fields(self)))

    def enter(
        self,
        taken: Numbers,
        indices: Sequence[int],
        canvases: Sequence[Canvas],
        rows: Rows,
        paths: Sequence[Sequence[tuple[int, int]]],
        *,
        is_prompt_run: bool,
    ) -> None:
        """Canvases `indices` take slots, with their `rows` on the host as they begin."""
        self.owners[taken], self.launched[taken], self.n_run[taken], self.costs[taken] = indices, -1, 0, 0
        self.tables[taken] = rows.records.numpy()
        self.at[taken], self.records[taken], self.n_read[taken] = 0, self.tables[taken, 0], 0
        self.n_returned[taken] = [canvases[index].n_returned for index in indices]
        self.shown_blocks[taken] = rows.block_of.gather(1, rows.shown).numpy()
        self.paths[taken] = -1
        if paths:
            for slot, index in zip(taken, indices, strict=True):
                self.paths[slot, : len(paths[index])] = paths[index]
        if is_prompt_run:
            prompts = self.tables[taken, 0]
            self.at[taken], self.n_run[taken] = prompts[:, Field.WIDE_DONE], 1
            self.records[taken] = self.tables[taken, self.at[taken]]
            self.costs[taken, 0], self.costs[taken, 2] = 1, prompts[:, Field.SIZE]

    def leave(self, empty: Numbers) -> None:
        """Slots that nothing waits for."""
        self.owners[empty] = self.at[empty] = self.paths[empty] = -1
        self.records[empty] = self.tables[empty, -1]

    def move(self, look: Look, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Rows are where a pass left them, `at` [R]: which took part in it, which took a step, and the records left."""
        is_there, before = (look.owners == self.owners) & (self.owners >= 0), self.records
        ran = is_there & (before[:, Field.WIDE if look.is_wide else Field.BLOCK] >= 0)
        took_step = ran & (before[:, Field.KIND] != Kind.STORE)
        self.costs[:, 0] += ran
        self.costs[:, 1] += took_step
        self.costs[:, 2] += ran * before[:, Field.SIZE]
        self.at = np.where(is_there, at, self.at)
        self.records = self.tables[np.arange(len(at)), self.at]
        return ran, took_step, before

    def finished(self, ran: Numbers, before: Numbers) -> Numbers:
        """Numbers [R] of the blocks that rows have finished since they were at `before` [R, F], -1 for none."""
        number, is_stored = self.records[:, Field.NUMBER], self.records[:, Field.KIND] == Kind.STORE
        done = np.where(is_stored, number, before[:, Field.NUMBER])
        return np.where(ran & (is_stored | (number != before[:, Field.NUMBER])), done, -1)
