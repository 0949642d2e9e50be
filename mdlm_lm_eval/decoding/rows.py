"""The rows that are being decoded: their state on the model's device, and what the host knows of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas, Filled
from mdlm_lm_eval.decoding.program import OVER, Field, Program
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.options import DecodingOptions

Numbers = npt.NDArray[Any]
Paths = Sequence[Sequence[tuple[int, int]]]  # as of `path_of`, of every canvas

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
    """R rows on canvases of at most T - 1 tokens; the last column is no row's. What no option asks for is None.

    at: [R], the record of the pass to come.
    best: [R] float32, NaN where logits of the last pass were not finite.
    tokens: [R, T].
    records: [R, S, F], the row's program; the last record is that of rows that are over.
    windows: [R, 2 B + 1, 5, G], of narrow passes, what `Plane` says; the last one is empty. [R, 1, 5, 0] where every
        pass runs the columns from the first one on.
    block_of, slot_number: [R, T], a slot's block (-2 where there is no slot) and its place among the row's slots (-1).
    facts: [R, 4] of each row: length, tokens of prompt, seed, tokens that are returned.
    shown: [R, N], columns whose tokens the host looks at, those first that come back; T - 1 behind the last.
    steps: [R], denoising steps so far, where numbers are drawn.
    random_numbers: [R, T] float32 in [0, 1), for rules that draw an order.
    prompt: [R, T] bool, what classifier-free guidance masks.
    filled: [R], of samplers that take tokens back: masks that the pass before filled.
    remembered: [R, T] float32, of the same: the priority that a token had when it was filled.
    before, divergences: [R, N + 1, V] and [R, H, T], of KLASS: the distributions of the pass before in every slot, and
        how much they changed in the last passes.
    passes, trace: [R], passes so far, and [R, 3, T] float32, of each token: the pass that wrote it, its confidence, how
        often the slot was written.
    """

    at: Tensor
    best: Tensor
    tokens: Tensor
    records: Tensor
    windows: Tensor
    block_of: Tensor
    slot_number: Tensor
    facts: Tensor
    shown: Tensor
    steps: Any
    random_numbers: Any
    prompt: Any
    filled: Any
    remembered: Any
    before: Any
    divergences: Any
    passes: Any
    trace: Any

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        of_all = (getattr(self, field.name) for field in fields(self))
        values: list[Any] = [None if each is None else change(each) for each in of_all]
        return type(self)(*values)

    def of(self, rows: Tensor) -> Self:
        """A copy of some rows."""
        return self._each(lambda each: each[rows])

    def to(self, device: torch.device) -> Self:
        """The same on a device; nothing waits for the copies."""
        return self._each(lambda each: to_device(each, device))

    def put(self, rows: Tensor, others: "Rows", *, changes_only: bool = False) -> None:
        """Writes rows, all that there is to know of them, or what a pass changes."""
        for name in _CHANGING if changes_only else [field.name for field in fields(self)]:
            if (of_all := getattr(self, name)) is not None:
                of_all.index_copy_(0, rows, getattr(others, name))

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
    canvases: Sequence[Canvas],
    programs: Sequence[Program],
    options: DecodingOptions,
    sizes: Sizes,
    pad_token_id: int,
    mask_token_id: int,
) -> Rows:
    """The rows of canvases and their programs as they begin, on the host. Seeds draw the orders of random rules."""
    n, last, tells = len(canvases), sizes.columns - 1, int(sizes.tells)
    of_slots = n, sizes.columns
    tokens, slot_number = np.full(of_slots, pad_token_id), np.full(of_slots, -1)
    block_of, shown, facts = np.full(of_slots, -2), np.full((n, sizes.shown), last), np.zeros((n, 4), int)
    records = np.tile(OVER, (n, sizes.records + 1, 1))
    width = sizes.window + tells if sizes.window else 0
    windows = np.full((n, 2 * sizes.blocks + 1 if width else 1, len(Plane), width), -1)
    windows[:, :, Plane.COLUMN], windows[:, :, Plane.ASKED] = last, 0
    windows[:, :, Plane.OUTPUT, tells:] = (np.arange(sizes.window) - sizes.shift).clip(min=0)
    prompt = np.zeros(of_slots, bool) if options.cfg_scale > 0.0 else None
    random_numbers = torch.zeros(of_slots) if unmasking_rule(options.unmasking).is_random else None
    for row, (canvas, program) in enumerate(zip(canvases, programs, strict=True)):
        slots = np.array(canvas.slots)
        tokens[row, : len(canvas.token_ids)] = canvas.token_ids
        slot_number[row, slots] = np.arange(len(slots))
        block_of[row, program.slots] = program.numbers
        records[row, : len(program.records)] = program.records
        facts[row] = len(canvas.token_ids), canvas.prompt_length, canvas.seed, canvas.n_returned
        shown[row, : len(slots)] = slots[: sizes.shown]
        if prompt is not None:
            prompt[row, : canvas.prompt_length] = True
            prompt[row, slots] = False
        if random_numbers is not None:
            generator = torch.Generator().manual_seed(canvas.seed)
            random_numbers[row, canvas.slots] = torch.rand(len(slots), generator=generator)
        if width:
            starts, stops = program.bounds.T
            narrow, numbers = program.is_narrow.nonzero()[0], program.numbers
            of_blocks = windows[row, : 2 * len(starts)].reshape(-1, 2, len(Plane), width)  # [B, 2, 5, G]
            columns = starts[narrow, None] + np.arange(sizes.window)
            columns = np.where(columns < stops[narrow, None], columns, last)
            of_blocks[narrow, :, Plane.COLUMN, tells:] = columns[:, None]
            places = program.slots - starts[numbers] + tells
            of_blocks[numbers, 0, Plane.EXPECTED, places] = mask_token_id
            of_blocks[numbers, 0, Plane.ASKED, places] = options.editing_threshold is not None
            parts = np.arange(-tells, sizes.window) // (options.small_block_length or sizes.window)
            of_blocks[narrow, 0, Plane.PART] = parts
            if tells:
                of_blocks[narrow, 1, Plane.ASKED, 0] = 1
                of_blocks[narrow, :, Plane.OUTPUT, 0] = (stops - starts - 1)[narrow, None]
                if sizes.writes:
                    writes = narrow[np.isin(stops[narrow], slots)]
                    of_blocks[writes, 1, Plane.COLUMN, 0] = stops[writes]
                    of_blocks[writes, 1, Plane.EXPECTED, 0] = mask_token_id
    compares, takes_back, counts = options.kl_threshold is not None, options.remasking != "none", torch.zeros(n).long()
    return Rows(
        at=counts.clone(),
        best=torch.zeros(n),
        tokens=torch.from_numpy(tokens),
        records=torch.from_numpy(records),
        windows=torch.from_numpy(windows),
        block_of=torch.from_numpy(block_of),
        slot_number=torch.from_numpy(slot_number),
        facts=torch.from_numpy(facts),
        shown=torch.from_numpy(shown),
        steps=counts if options.temperature > 0.0 else None,
        random_numbers=random_numbers,
        prompt=None if prompt is None else torch.from_numpy(prompt),
        filled=counts.clone() if takes_back else None,
        remembered=torch.zeros(of_slots) if takes_back else None,
        before=torch.zeros(n, sizes.slots + 1, sizes.vocabulary) if compares else None,
        divergences=torch.zeros(n, options.kl_history, sizes.columns) if compares else None,
        passes=counts.clone() if options.trace else None,
        trace=torch.zeros(n, 3, sizes.columns) if options.trace else None,
    )


class Look(NamedTuple):
    """What a pass left of the rows that were there, on its way to the host: `sent` [R, N + 2] once `event` is over.

    Those are the tokens that the host looks at, `Rows.at`, and in halves of 32 bits `Rows.best` after the sum of all
    tokens (where some slots are not shown). places: of the slots of today, their rows in `sent`, None where they are
    the same. takes_part: [R], whether a slot still holds its row, and a wide pass was planned to run it: a row that
    came to wait for a wide pass after that plan is not in it.
    """

    number: int
    is_wide: bool
    sent: Tensor
    event: Any
    places: Numbers | None
    takes_part: Numbers


@dataclass
class Slots:
    """R slots as the host knows them, on a GPU a pass late; all arrays begin with R.

    owners: which canvas each holds, -1 for none.
    at: the record `Rows.at` as last seen. records: [R, F], these records themselves.
    launched, n_run: the last wide pass of the row, and how many passes it took.
    costs: [R, 3], what `Cost` holds.
    n_read, n_returned: tokens that the caller was asked about, and that come back.
    behind: [R, N + 2] bool, what stands behind the tokens that come back.
    shown_blocks: [R, N + 2], blocks of the tokens that the host sees.
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
    behind: Numbers
    shown_blocks: Numbers
    tables: Numbers
    paths: Numbers

    @classmethod
    def empty(cls, n: int, sizes: Sizes, longest_path: int) -> Self:
        """No slot of `n` holds a canvas."""
        nothing, zeros = np.full(n, -1), np.zeros(n, int)
        tables, seen = np.tile(OVER, (n, sizes.records + 1, 1)), (n, sizes.shown + 2)
        seen_of = np.ones(seen, bool), np.full(seen, -2)
        costs, paths = np.zeros((n, 3), int), np.full((n, longest_path + 1, 2), -1)
        arrays = (nothing, nothing, tables[:, -1], nothing, zeros, costs, zeros, zeros, *seen_of, tables, paths)
        return cls(*(array.copy() for array in arrays))

    def of(self, kept: Numbers) -> Self:
        """A copy of some slots."""
        return type(self)(*(getattr(self, field.name)[kept] for field in fields(self)))

    def enter(self, taken: Numbers, indices: Sequence[int], rows: Rows, paths: Paths, *, is_prompt_run: bool) -> None:
        """Canvases `indices` take slots, with their `rows` on the host as they begin."""
        self.owners[taken], self.launched[taken], self.n_run[taken], self.costs[taken] = indices, -1, 0, 0
        self.tables[taken] = rows.records.numpy()
        self.at[taken], self.records[taken], self.n_read[taken] = 0, self.tables[taken, 0], 0
        self.n_returned[taken] = n_returned = rows.facts[:, 3].numpy()
        self.behind[taken] = np.arange(self.behind.shape[1]) >= n_returned[:, None]
        self.shown_blocks[taken, :-2] = rows.block_of.gather(1, rows.shown).numpy()
        self.paths[taken] = -1
        if paths:
            for slot, index in zip(taken, indices, strict=True):
                self.paths[slot, : len(paths[index])] = paths[index]
        if is_prompt_run:
            prompts = self.tables[taken, 0]
            self.at[taken], self.n_run[taken], self.costs[taken] = (
                prompts[:, Field.WIDE_DONE],
                1,
                prompts[:, Field.PASSES :],
            )
            self.records[taken] = self.tables[taken, self.at[taken]]

    def leave(self, empty: Numbers) -> None:
        """Slots that nothing waits for."""
        self.owners[empty] = self.at[empty] = self.paths[empty] = -1
        self.records[empty] = self.tables[empty, -1]

    def move(self, look: Look, at: Numbers) -> tuple[Numbers, Numbers, bool]:
        """Rows are where a pass left them, `at` [R]: which took part in it, the records left, and whether any moved."""
        before = self.records
        ran = look.takes_part & (before[:, Field.WIDE if look.is_wide else Field.BLOCK] >= 0)
        self.costs += before[:, Field.PASSES :] * ran[:, None]
        moved = look.takes_part & (at != self.at)
        if has_moved := bool(moved.any()):
            self.at = np.where(moved, at, self.at)
            self.records = self.tables[np.arange(len(at)), self.at]
        return ran, before, has_moved
