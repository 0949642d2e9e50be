"""The lanes of a batch as the host knows them: each one's canvas, its record, and its cost so far."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from torch import Tensor

from mdlm_lm_eval.decoding.program import OVER, Field, Numbers
from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.decoding.run import Run
from mdlm_lm_eval.decoding.windows import Plan

Paths = Sequence[Sequence[tuple[int, int]]]  # as of `path_of`, for every canvas


class Look(NamedTuple):
    """The outcome of a planned pass on its way to the host; `sent` [R, N + 2] can be read once `event` is over.

    sent: the tokens that the host looks at, `Rows.at`, and in halves of 32 bits `Rows.best` and the sum of tokens times
        places, which changes with tokens that the host does not look at.
    changes: with a trace, [3, R, T], tokens before and after the pass, and the bits of `Rows.confidence`.
    first: with labels, [R, 3], the numbers of `FirstToken`.
    places: [R], the row in `sent` of each lane that is still there.
    takes_part: [R] bool, whether a lane still holds its row, and the pass was planned to run it.
    """

    number: int
    plan: Plan
    sent: Tensor
    changes: Tensor | None
    first: Tensor | None
    event: Any
    places: Numbers
    takes_part: Numbers


class Moved(NamedTuple):
    """Which rows took part in a pass, [R] bool, and their records before and after it, [R, F]."""

    ran: Numbers
    before: Numbers
    after: Numbers


@dataclass
class Lanes:
    """R lanes, on a GPU as they were a pass ago; the first dimension of all arrays is R.

    owners: the canvas that each holds, -1 for none.
    at: the record `Rows.at` as last seen.
    launched, n_run: the number of the row's last wide pass, and how many passes have run the row.
    seen: [R, 2 N + 3], the last outcome that was sent of a row, without `Rows.best`.
    idle: how many of the row's last passes left `seen` unchanged.
    costs: [R, 3], passes, steps and tokens of `RowCost`.
    n_read, n_returned: how many tokens the caller was asked about, and how many are returned.
    beyond_answer: [R, N + 2] bool, the places after the tokens that are returned.
    shown_blocks: [R, N + 2], blocks of the tokens that the host sees.
    tables, paths: the rows' programs, and as of `path_of` their records if the plans alone decide.
    """

    owners: Numbers
    at: Numbers
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
    def empty(cls, n: int, run: Run, longest_path: int) -> Self:
        """`n` lanes that hold no canvas."""
        seen = n, run.n_shown + 2
        return cls(
            owners=np.full(n, -1),
            at=np.full(n, -1),
            launched=np.full(n, -1),
            n_run=np.zeros(n, int),
            seen=np.full((n, 2 * run.n_shown + 3), -1, np.int32),
            idle=np.zeros(n, int),
            costs=np.zeros((n, 3), int),
            n_read=np.zeros(n, int),
            n_returned=np.zeros(n, int),
            beyond_answer=np.ones(seen, bool),
            shown_blocks=np.full(seen, -2),
            tables=np.tile(OVER, (n, run.n_records + 1, 1)),
            paths=np.full((n, longest_path + 1, 2), -1),
        )

    def of(self, kept: Numbers) -> Self:
        """Copies of some lanes."""
        return type(self)(*(getattr(self, field.name)[kept] for field in fields(self)))

    def records_at(self, at: Numbers) -> Numbers:
        """The records [R, F] of these numbers [R]."""
        records: Numbers = self.tables[np.arange(len(at)), at]
        return records

    def enter(self, taken: Numbers, indices: Sequence[int], rows: Rows, paths: Paths, *, is_prompt_run: bool) -> None:
        """Enters canvases `indices` into the lanes `taken`, with their `rows` on the host as they begin."""
        self.owners[taken] = indices
        self.launched[taken] = self.seen[taken] = -1
        self.n_run[taken] = self.idle[taken] = self.costs[taken] = self.n_read[taken] = 0
        self.tables[taken] = rows.records.numpy()
        self.at[taken] = 0
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

    def leave(self, empty: Numbers) -> None:
        """Empties lanes that no canvas waits for."""
        self.owners[empty] = self.at[empty] = self.paths[empty] = -1

    def move(self, look: Look, at: Numbers, seen: Numbers) -> Moved:
        """Updates the lanes after a pass, which left rows at records `at` [R] with the outcome `seen` [R, 2 N + 3]."""
        before = self.records_at(self.at)
        ran = look.takes_part & (before[:, Field.WIDE if look.plan.is_wide else Field.BLOCK] >= 0)
        self.costs += before[:, Field.PASSES :] * ran[:, None] * [1, 1, look.plan.views]
        moved = look.takes_part & (at != self.at)
        is_same = (seen == self.seen).all(1)
        self.idle = np.where(ran & is_same, self.idle + 1, self.idle * ~ran)
        self.seen = np.where(ran[:, None], seen, self.seen)
        self.at = np.where(moved, at, self.at)
        return Moved(ran, before, self.records_at(self.at))
