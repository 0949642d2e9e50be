"""How far the decoding of one canvas has come, block by block. No tensor algebra."""

from collections.abc import Collection, Sequence
from enum import Enum

import torch

from mdlm_lm_eval.decoding.blocks import Block
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.completion import Cost, ReturnedSlots
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.options import DecodingOptions

# LLaDA2.1's own default.
DEFAULT_POST_STEPS = 16


class Phase(Enum):
    """What the next pass over a row's block is for."""

    FILL = "fill masks, and edit what was filled"
    EDIT = "edit a block without masks"
    STORE = "remember the keys and values of a finished block"


class CanvasProgress:
    """One canvas: its tokens so far, the block that is decoded, and what its next pass does."""

    def __init__(
        self, index: int, canvas: Canvas, blocks: Sequence[Block], options: DecodingOptions, mask_token_id: int
    ) -> None:
        self.index, self.canvas, self.blocks, self.options = index, canvas, tuple(blocks), options
        self.mask_token_id = mask_token_id
        self.token_ids = list(canvas.token_ids)
        self.slot_numbers = {slot: number for number, slot in enumerate(canvas.slots)}
        self.generator = torch.Generator().manual_seed(canvas.seed)
        self.random_numbers = [0.0] * len(canvas.slots)
        if unmasking_rule(options.unmasking).is_random:
            self.random_numbers = torch.rand(len(canvas.slots), generator=self.generator).tolist()
        self.cost = Cost()
        self.phase = Phase.FILL
        self._enter(0)

    @property
    def block(self) -> Block:
        """The block that is decoded."""
        return self.blocks[self.number]

    @property
    def is_done(self) -> bool:
        """Whether no block is left."""
        return self.number == len(self.blocks)

    def masked(self) -> list[int]:
        """Slots of the current block that are still masks."""
        return [slot for slot in self.block.slots if self.token_ids[slot] == self.mask_token_id]

    def candidates(self) -> list[int]:
        """Masks that the next pass may fill: those of the first part of the block that has any."""
        masked = self.masked()
        length = self.options.small_block_length
        if length is None or not masked:
            return masked
        part = (masked[0] - self.block.start) // length
        return [slot for slot in masked if (slot - self.block.start) // length == part]

    def editable(self) -> list[int]:
        """Slots of the current block whose tokens the next pass may change."""
        if self.options.editing_threshold is None:
            return []
        return [slot for slot in self.block.slots if self.token_ids[slot] != self.mask_token_id]

    def count(self) -> int:
        """How many masks the next pass fills at least."""
        return self.block.counts[self.step] if self.step < len(self.block.counts) else 1

    def edits(self, columns: Sequence[int], tokens: Sequence[int], confidence: Sequence[float]) -> dict[int, int]:
        """Column -> token, where a pass is sure enough of another token than the one that was filled in."""
        threshold = self.options.editing_threshold
        if threshold is None:
            return {}
        editable = set(self.editable())
        proposed = zip(columns, tokens[: len(columns)], confidence[: len(columns)], strict=True)
        return {
            column: token
            for column, token, sure in proposed
            if column in editable and sure > threshold and token != self.token_ids[column]
        }

    def fill(self, filled: dict[int, int], edited: dict[int, int]) -> None:
        """Writes the tokens that a pass filled and edited, column -> token, and decides what the next pass does."""
        for column, token in (filled | edited).items():
            self.token_ids[column] = token
        self.step += 1
        self.post_steps += self.phase is Phase.EDIT
        if self.masked():
            return
        most = DEFAULT_POST_STEPS if self.options.max_post_steps is None else self.options.max_post_steps
        # A pass that changed nothing saw the block as it stays.
        self.is_stored = self.phase is Phase.EDIT and not edited
        may_edit = self.options.editing_threshold is not None and not self.is_stored and self.post_steps < most
        self.phase = Phase.EDIT if may_edit else Phase.STORE

    def next_block(self, first_token: int | None = None) -> None:
        """Goes on to the next block, whose first token may be known already."""
        if first_token is not None and self.block.stop in self.slot_numbers:
            self.token_ids[self.block.stop] = first_token
        self._enter(self.number + 1)

    def _enter(self, number: int) -> None:
        self.number = number  # of the current block
        self.step = 0  # passes over it that filled or edited
        self.post_steps = 0  # of these, passes that found no mask in it
        self.is_stored = False  # whether its keys and values are remembered as it stays
        self.phase = Phase.STORE if self.is_done or not self.masked() else Phase.FILL

    def is_over(self, end_ids: Collection[int]) -> bool:
        """Whether no block is left, or a finished one holds an end: all families' samplers stop after such a block."""
        if self.phase is not Phase.STORE or self.is_done:
            return self.is_done
        is_last = self.number == len(self.blocks) - 1
        return is_last or any(self.token_ids[slot] in end_ids for slot in self.block.slots)

    def returned(self) -> ReturnedSlots:
        """What comes back, so far."""
        slots = self.canvas.slots[: self.canvas.n_returned]
        return ReturnedSlots([self.token_ids[slot] for slot in slots], self.mask_token_id)
