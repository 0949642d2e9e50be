"""The lanes of a batch as the host knows them: which canvas each holds, where it is, and what it has cost."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from torch import Tensor

from mdlm_lm_eval.decoding.program import OVER, Field, Numbers
from mdlm_lm_eval.decoding.rows import Rows, Sizes

Paths = Sequence[Sequence[tuple[int, int]]]  # as of `path_of`, for every canvas


class Look(NamedTuple):
    """The outcome of a pass on its way to the host; `sent` [R, N + 2] can be read once `event` is over.

    views: canvases of each row that it ran.
    sent: the tokens that the host looks at, `Rows.at`, and in halves of 32 bits the sum of tokens times places
        (where some slots are not shown) and `Rows.best`.
    changes: with a trace, [3, R, T] tokens before and after the pass, and the bits of `Rows.confidence`.
    first: with labels, [R, 3] the numbers of `FirstToken`.
    places: for each of today's lanes, its row in `sent`, None where they are the same.
    takes_part: [R], whether a lane still holds its row, and the pass was planned to run it.
    """

    number: int
    is_wide: bool
    views: int
    sent: Tensor
    changes: Tensor | None
    first: Tensor | None
    event: Any
    places: Numbers | None
    takes_part: Numbers

    def row_of(self, lane: int) -> int:
        """The row of one of today's lanes."""
        return lane if self.places is None else int(self.places[lane])

    def numbers(self) -> Numbers:
        """`sent` [R, N + 2] for today's lanes."""
        sent = self.sent.numpy()
        return sent if self.places is None else sent[self.places]


class Moved(NamedTuple):
    """Which rows took part in a pass [R], their records before it [R, F], and whether any is at another one now."""

    ran: Numbers
    before: Numbers
    any_moved: bool


@dataclass
class Lanes:
    """R lanes, on a GPU as they were a pass ago; all arrays begin with R.

    owners: which canvas each holds, -1 for none.
    at: the record `Rows.at` as last seen. records: [R, F], these records themselves.
    launched, n_run: the last wide pass of the row, and how many passes it took.
    seen, idle: [R, 2 N + 3], what was last sent of a row but for `Rows.best`, and how many of its passes changed none.
    costs: [R, 3], the fields of `RowCost`.
    n_read, n_returned: tokens that the caller was asked about, and that come back.
    beyond_answer: [R, N + 2] bool, the places after the tokens that come back.
    shown_blocks: [R, N + 2], blocks of the tokens that the host sees.
    tables, paths: the rows' programs, and their records where a plan alone decides.
    """

    owners: Numbers
    at: Numbers
    records: Numbers
    launched: Numbers
    n_run: Numbers
    seen: Numbers
    idle: Numbers
    costs: Numbers
    n_read: Numbers
    n_returned: Numbers
    beyond_answer: Numbers
    shown_blocks: Numbers
    tables: Numbers
    paths: Numbers

    @classmethod
    def empty(cls, n: int, sizes: Sizes, longest_path: int) -> Self:
        """No lane of `n` holds a canvas."""
        tables = np.tile(OVER, (n, sizes.records + 1, 1))
        seen = n, sizes.shown + 2
        return cls(
            owners=np.full(n, -1),
            at=np.full(n, -1),
            records=tables[:, -1].copy(),
            launched=np.full(n, -1),
            n_run=np.zeros(n, int),
            seen=np.full((n, 2 * sizes.shown + 3), -1, np.int32),
            idle=np.zeros(n, int),
            costs=np.zeros((n, 3), int),
            n_read=np.zeros(n, int),
            n_returned=np.zeros(n, int),
            beyond_answer=np.ones(seen, bool),
            shown_blocks=np.full(seen, -2),
            tables=tables,
            paths=np.full((n, longest_path + 1, 2), -1),
        )

    def of(self, kept: Numbers) -> Self:
        """A copy of some lanes."""
        return type(self)(*(getattr(self, field.name)[kept] for field in fields(self)))

    def enter(self, taken: Numbers, indices: Sequence[int], rows: Rows, paths: Paths, *, is_prompt_run: bool) -> None:
        """Canvases `indices` take lanes, with their `rows` on the host as they begin."""
        self.owners[taken] = indices
        self.launched[taken] = self.seen[taken] = -1
        self.n_run[taken] = self.idle[taken] = self.costs[taken] = self.n_read[taken] = 0
        self.tables[taken] = rows.records.numpy()
        self.at[taken], self.records[taken] = 0, self.tables[taken, 0]
        self.n_returned[taken] = n_returned = rows.facts[:, 3].numpy()
        self.beyond_answer[taken] = np.arange(self.beyond_answer.shape[1]) >= n_returned[:, None]
        self.shown_blocks[taken, :-2] = rows.block_of.gather(1, rows.shown).numpy()
        self.paths[taken] = -1
        if paths:
            for lane, index in zip(taken, indices, strict=True):
                self.paths[lane, : len(paths[index])] = paths[index]
        if is_prompt_run:
            prompts = self.tables[taken, 0]
            self.at[taken], self.n_run[taken] = prompts[:, Field.WIDE_DONE], 1
            self.costs[taken] = prompts[:, Field.PASSES :]
            self.records[taken] = self.tables[taken, self.at[taken]]

    def leave(self, empty: Numbers) -> None:
        """Lanes that nothing waits for."""
        self.owners[empty] = self.at[empty] = self.paths[empty] = -1
        self.records[empty] = self.tables[empty, -1]

    def move(self, look: Look, at: Numbers, seen: Numbers) -> Moved:
        """Rows are where a pass left them, `at` [R], as they are `seen` [R, 2 N + 3] now."""
        before = self.records
        ran = look.takes_part & (before[:, Field.WIDE if look.is_wide else Field.BLOCK] >= 0)
        self.costs += before[:, Field.PASSES :] * ran[:, None] * [1, 1, look.views]
        moved = look.takes_part & (at != self.at)
        is_same = (seen == self.seen).all(1)
        self.idle = np.where(ran & is_same, self.idle + 1, self.idle * ~ran)
        self.seen = np.where(ran[:, None], seen, self.seen)
        if any_moved := bool(moved.any()):
            self.at = np.where(moved, at, self.at)
            self.records = self.tables[np.arange(len(at)), self.at]
        return Moved(ran, before, any_moved)
