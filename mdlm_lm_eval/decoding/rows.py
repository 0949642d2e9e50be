"""A row: a canvas that is being decoded, block by block, with the stage that it is in and its answer so far."""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mdlm_lm_eval.decoding.blocks import Block, Layout, Structure
from mdlm_lm_eval.decoding.canvas import Canvas, FirstToken, RowCost
from mdlm_lm_eval.decoding.sampler import Step
from mdlm_lm_eval.decoding.trace import Event

# A row makes no progress if this many of its passes in succession change nothing.
MOST_IDLE = 3
_PROMPT, NO_BLOCK = -1, -9  # the number of the text before the first block, and in place of a number


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
    canvas: Canvas
    layout: Layout
    structure: Structure
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
        structure, block, length = self.structure, self.block, len(self.canvas.token_ids)
        stores, runs_later = self.stage is Stage.STORE, structure.runs_later and bool(block.slots)
        stop = block.end if stores else block.stop
        limit = stop if structure.is_cut and not runs_later else length
        # The output of the column before a block predicts the block's first token, if logits are shifted.
        start = max(0, block.start - structure.shift) if runs_later else block.start
        stores_text = stores and (not block.slots or block.end > block.stop)  # which is part of no block with a slot
        self.is_wide = structure.way.cache.is_wide(self.n_passes, stores_text=stores_text)
        first, end = structure.way.cache.columns(start, stop, limit, is_wide=self.is_wide)
        fills_next = stores and structure.fills_next and block.end in self.canvas.slots
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
        is_idle = not changed and not self.structure.way.sampler.ends_as_planned and self.step.fill > 0
        self.n_passes += 1
        self._leave_stage(changed=changed, has_masks=has_masks, first_open=first_open)
        has_moved = was_wide or (self.number, self.stage) != before
        self.idle = self.idle + 1 if is_idle and not has_moved else 0
        if has_moved and not self.is_over:
            self._prepare()
        return has_moved

    def _leave_stage(self, *, changed: bool, has_masks: bool, first_open: int) -> None:
        """Goes on to another stage or block if this one is done."""
        structure = self.structure
        if self.stage is Stage.STORE:
            self._enter_next_block()
        elif self.stage is Stage.EDIT:
            self.n_edits += 1
            if not changed or self.n_edits == structure.n_edits:
                self._finish_block(ran_final_tokens=not changed)
        elif structure.runs_later:
            self.number = first_open if has_masks else len(self.layout.blocks)
        elif structure.way.sampler.ends_as_planned:
            if self.n_passes == len(self.block.steps):
                self._finish_block()
        elif not has_masks and structure.n_edits:
            self.stage = Stage.EDIT
        elif not has_masks:
            self._finish_block()

    def _finish_block(self, *, ran_final_tokens: bool = False) -> None:
        """Goes on to the pass that stores the block, if one is needed, or to the next block."""
        structure, block = self.structure, self.block
        is_stored = ran_final_tokens and not structure.predicts_next and block.end == block.stop
        is_last = self.number + 1 == len(self.layout.blocks)
        if structure.stores and not is_stored and not is_last:
            self.stage = Stage.STORE
        else:
            self._enter_next_block()

    def _enter_next_block(self) -> None:
        """Goes on to the next block; past its masks if its only token is one that the block before predicts."""
        self.number += 1
        self.stage = Stage.FILL
        self.n_passes = self.n_edits = 0
        if self.structure.fills_next and not self.is_over and self.block.slots == (self.block.start,):
            self._finish_block()

    def decide(self, end_ids: Collection[int], mask_token_id: int) -> bool:
        """Counts the tokens that are final now; whether all are, or an end of text is among the new ones."""
        settled, most = self.structure.way.sampler.settled, self.canvas.n_returned
        if not self.is_over and settled == "with the canvas":
            return False
        if not self.is_over and settled == "with its block":
            most = min(most, self.layout.before[max(0, self.n_closed)])
        n_before = self.n_decided
        while self.n_decided < most and self.answer[self.n_decided] != mask_token_id:
            self.n_decided += 1
        is_all = self.n_decided == self.canvas.n_returned
        return is_all or any(token in end_ids for token in self.answer[n_before : self.n_decided])

    def closed_with(self, end_ids: Collection[int]) -> bool:
        """Whether the last finished block holds an end of text."""
        closed, before = self.n_closed - 1, self.layout.before
        return closed >= 0 and any(token in end_ids for token in self.answer[before[closed] : before[closed + 1]])
