"""The slots of a run as the host knows them, on a GPU a pass late: who sits where, how far it is, what it took."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.program import OVER, Field, Kind
from mdlm_lm_eval.decoding.rows import Rows, Sizes

Numbers = npt.NDArray[Any]


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
