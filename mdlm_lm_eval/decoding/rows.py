"""Rows, which are canvases that are being decoded block by block, and the lanes in which they run together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch, Block
from mdlm_lm_eval.decoding.canvas import FirstToken, RowCost
from mdlm_lm_eval.decoding.sampler import Step
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows

Numbers = npt.NDArray[Any]
# A row makes no progress if this many of its passes in succession change nothing.
MOST_IDLE = 3
_PROMPT, NO_BLOCK = -1, -9  # the number of the text before the first block, and in place of a number
_EMPTY = {"token": 0, "slot": -1, "block": -2, "order": np.float32(0.0), "in_prompt": False}


class Stage(Enum):
    """The purposes of a pass over a row's block."""

    FILL = "fill masks, and edit filled tokens"
    EDIT = "edit a block without masks"
    STORE = "remember the keys and values of a finished block and of the text after it, and fill the token that follows"


class Extent(NamedTuple):
    """The next pass over a row: it runs columns first:end, which see columns before `limit`.

    start: the first column of the block that is filled; `limit` if none is.
    number: of the block whose masks it may fill; NO_BLOCK if it stores one.
    n_before: the slots before the block.
    after: the column of the token after a finished block, which the pass fills; NO_BLOCK if there is none.
    stores: whether it stores a finished block. n_prompt: the length of the prompt.
    """

    first: int
    end: int
    limit: int
    start: int
    number: int
    n_before: int
    after: int
    stores: bool
    n_prompt: int


@dataclass(eq=False)
class Row:
    """A canvas that is being decoded.

    number, stage: the block, and the purpose of the next pass over it.
    extent, is_wide: the columns of that pass, and whether it runs whole canvases or text.
    n_passes, n_edits: the passes over this block so far, and those that only edited it.
    answer: the tokens of all slots.
    n_decided, n_asked: how many of them are final, from the left without a gap, and the caller was asked about.
    idle: passes that changed nothing, since one that did.
    """

    index: int
    batch: Batch
    lane: int = -1
    number: int = 0
    stage: Stage = Stage.FILL
    n_passes: int = 0
    n_edits: int = 0
    n_decided: int = 0
    n_asked: int = 0
    idle: int = 0
    cost: RowCost = field(default_factory=RowCost)
    first: FirstToken | None = None
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.canvas, self.layout = self.batch.canvases[self.index], self.batch.layouts[self.index]
        self.answer = [self.canvas.token_ids[slot] for slot in self.canvas.slots]
        if self.layout.prompt is not None:
            self.number, self.stage = _PROMPT, Stage.STORE
        self._prepare()

    @property
    def block(self) -> Block:
        """The block that is decoded, or the prompt."""
        prompt = self.layout.prompt
        return self.layout.blocks[self.number] if self.number > _PROMPT or prompt is None else prompt

    @property
    def is_over(self) -> bool:
        """Whether all blocks are finished."""
        return self.number == len(self.layout.blocks)

    @property
    def n_closed(self) -> int:
        """The number of finished blocks."""
        return self.number + (self.stage is Stage.STORE)

    @property
    def step_number(self) -> int:
        """The number of the planned step."""
        return min(self.n_passes, len(self.block.steps) - 1) if self.stage is Stage.FILL else 0

    @property
    def step(self) -> Step:
        """The planned step."""
        return self.block.steps[self.step_number] if self.stage is Stage.FILL else Step(1)

    def _prepare(self) -> None:
        """Sets the columns of the next pass."""
        batch, block, length = self.batch, self.block, len(self.canvas.token_ids)
        stores, runs_later = self.stage is Stage.STORE, batch.runs_later and bool(block.slots)
        stop = block.end if stores else block.stop
        limit = stop if batch.is_cut and not runs_later else length
        # The output of the column before a block predicts the block's first token, if logits are shifted.
        start = max(0, block.start - batch.shift) if runs_later else block.start
        stores_text = stores and (not block.slots or block.end > block.stop)  # which is part of no block with a slot
        self.is_wide = batch.way.cache.is_wide(self.n_passes, stores_text=stores_text)
        first, end = batch.way.cache.columns(start, stop, limit, is_wide=self.is_wide)
        fills_next = stores and batch.fills_next and block.end in self.canvas.slots
        self.extent = Extent(
            first,
            end,
            limit,
            start=start if self.stage is Stage.FILL else limit,
            number=NO_BLOCK if stores else self.number,
            n_before=self.layout.before[max(0, self.number)],
            after=block.end if fills_next else NO_BLOCK,
            stores=stores,
            n_prompt=self.canvas.prompt_length,
        )

    def move_on(self, *, changed: bool, has_masks: bool, first_open: int) -> bool:
        """Goes on after a pass; whether the next one runs other columns, or is of another stage.

        `has_masks` tells whether masks are left where the pass could fill them, and `first_open` which was the first
        block that held masks before it. A block that a pass over later blocks has finished is run once more with them:
        so the keys and values of its final tokens are remembered.
        """
        before, was_wide = (self.number, self.stage), self.is_wide
        is_idle = not changed and not self.batch.way.sampler.ends_as_planned and self.step.fill > 0
        self.n_passes += 1
        self._leave_stage(changed=changed, has_masks=has_masks, first_open=first_open)
        has_moved = was_wide or (self.number, self.stage) != before
        self.idle = self.idle + 1 if is_idle and not has_moved else 0
        if has_moved and not self.is_over:
            self._prepare()
        return has_moved

    def _leave_stage(self, *, changed: bool, has_masks: bool, first_open: int) -> None:
        """Goes on to another stage or block if this one is done."""
        batch = self.batch
        if self.stage is Stage.STORE:
            self._enter_next_block()
        elif self.stage is Stage.EDIT:
            self.n_edits += 1
            if not changed or self.n_edits == batch.n_edits:
                self._finish_block(ran_final_tokens=not changed)
        elif batch.runs_later:
            self.number = first_open if has_masks else len(self.layout.blocks)
        elif batch.way.sampler.ends_as_planned:
            if self.n_passes == len(self.block.steps):
                self._finish_block()
        elif not has_masks and batch.n_edits:
            self.stage = Stage.EDIT
        elif not has_masks:
            self._finish_block()

    def _finish_block(self, *, ran_final_tokens: bool = False) -> None:
        """Goes on to the pass that stores the block, if one is needed, or to the next block."""
        batch, block = self.batch, self.block
        is_stored = ran_final_tokens and not batch.predicts_next and block.end == block.stop
        is_last = self.number + 1 == len(self.layout.blocks)
        if batch.stores and not is_stored and not is_last:
            self.stage = Stage.STORE
        else:
            self._enter_next_block()

    def _enter_next_block(self) -> None:
        """Goes on to the next block; past its masks if its only token is one that the block before predicts."""
        self.number += 1
        self.stage = Stage.FILL
        self.n_passes = self.n_edits = 0
        if self.batch.fills_next and not self.is_over and self.block.slots == (self.block.start,):
            self._finish_block()

    def decide(self) -> bool:
        """Counts the tokens that are final now; whether all are, or an end of text is among the new ones."""
        settled, most = self.batch.way.sampler.settled, self.canvas.n_returned
        if not self.is_over and settled == "with the canvas":
            return False
        if not self.is_over and settled == "with its block":
            most = min(most, self.layout.before[max(0, self.n_closed)])
        n_before = self.n_decided
        while self.n_decided < most and self.answer[self.n_decided] != self.batch.mask_token_id:
            self.n_decided += 1
        is_all = self.n_decided == self.canvas.n_returned
        return is_all or not self.batch.end_ids.isdisjoint(self.answer[n_before : self.n_decided])

    def has_closed_an_end(self) -> bool:
        """Whether the last finished block holds an end of text."""
        closed, before = self.n_closed - 1, self.layout.before
        return closed >= 0 and not self.batch.end_ids.isdisjoint(self.answer[before[closed] : before[closed + 1]])


class Lanes:
    """L lanes with their rows and the canvases of these, on the host; the first dimension of all arrays is the lane.

    rows: the row in each lane, None if it is empty.
    cache: keys and values of all lanes, under guidance followed by those of the unconditional canvases.
    state: tensors [L, ...] that readers keep between passes, which begin as `fresh` [1, ...] for each row.
    columns: [L, T] each, a column's token, the number of its slot (-1 elsewhere) and of the slot's block (-2
        elsewhere), a number in [0, 1) for rules that draw an order, and whether guidance masks it.
    """

    def __init__(self, batch: Batch, n: int, fresh: Mapping[str, Tensor]) -> None:
        self.batch, self.fresh = batch, fresh
        self.rows: list[Row | None] = [None] * n
        self.state = {name: each.expand(n, *each.shape[1:]).clone() for name, each in fresh.items()}
        self.cache: CanvasCache | None = None
        if batch.way.cache.remembers:
            n_layers = batch.denoiser.model.config.num_hidden_layers
            self.cache = CanvasCache(n_layers, batch.n_columns, 2 * n if batch.is_guided else n)
        self.columns: dict[str, Numbers] = {
            name: np.full((n, batch.n_columns), value) for name, value in _EMPTY.items()
        }

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> Numbers:
        """[L, T]."""
        return self.columns["token"]

    @property
    def free(self) -> list[int]:
        """The lanes without a row."""
        return [lane for lane, row in enumerate(self.rows) if row is None]

    def begin(self, lanes: Sequence[int], rows: Sequence[Row]) -> None:
        """Writes rows as they begin, with their shared prefixes. A canvas's seed draws its random order."""
        for lane, row in zip(lanes, rows, strict=True):
            canvas, slots = row.canvas, list(row.canvas.slots)
            self.rows[lane], row.lane = row, lane
            for name, value in _EMPTY.items():
                self.columns[name][lane] = value
            self.tokens[lane] = self.batch.denoiser.pad_token_id
            self.tokens[lane, : len(canvas.token_ids)] = canvas.token_ids
            self.columns["in_prompt"][lane, : canvas.prompt_length] = True
            self.columns["in_prompt"][lane, slots] = False
            self.columns["slot"][lane, slots] = np.arange(len(slots))
            for number, block in enumerate(row.layout.blocks):
                self.columns["block"][lane, list(block.slots)] = number
            generator = torch.Generator().manual_seed(canvas.seed)
            self.columns["order"][lane, slots] = torch.rand(len(slots), generator=generator).numpy()
        self._reset(lanes)
        if self.cache is not None and self.batch.shares_prefixes:
            begin_rows(self.cache, [row.canvas.prefix for row in rows], lanes)

    def take(self, lanes: Sequence[int], others: "Lanes", rows: Sequence[Row]) -> None:
        """Takes over rows from other lanes, with the keys and values of those whose prompts have been run."""
        pairs = list(zip(lanes, rows, strict=True))
        if has_run := [(lane, row.lane) for lane, row in pairs if row.cost.forward_passes > 0]:
            assert self.cache is not None
            assert others.cache is not None
            own, theirs = zip(*has_run, strict=True)
            self.cache.take(self.in_cache(own), others.cache, others.in_cache(theirs))
        for lane, row in pairs:
            for name, of_lanes in self.columns.items():
                of_lanes[lane] = others.columns[name][row.lane]
            others.rows[row.lane] = None
            self.rows[lane], row.lane = row, lane
        self._reset(lanes)

    def _reset(self, lanes: Sequence[int]) -> None:
        for name, value in self.fresh.items():
            index = torch.tensor(lanes, dtype=torch.long)
            self.state[name][to_device(index, value.device)] = value

    def keep(self, lanes: Sequence[int]) -> None:
        """Drops all other lanes."""
        if self.cache is not None:
            self.cache.keep(self.in_cache(lanes))
        index = torch.tensor(lanes, dtype=torch.long)
        self.state = {name: each[to_device(index, each.device)] for name, each in self.state.items()}
        self.columns = {name: each[list(lanes)] for name, each in self.columns.items()}
        self.rows = [self.rows[lane] for lane in lanes]
        for lane, row in enumerate(self.rows):
            if row is not None:
                row.lane = lane

    def in_cache(self, lanes: Sequence[int]) -> Tensor:
        """The rows of lanes in the cache, on the device; under guidance followed by the unconditional ones'."""
        own = torch.tensor(lanes, dtype=torch.long)
        own = torch.cat([own, own + len(self)]) if self.batch.is_guided else own
        return to_device(own, self.batch.device)
