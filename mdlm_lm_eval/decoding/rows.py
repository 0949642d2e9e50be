"""The state of the rows that are being decoded, as tensors on the model's device."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Self

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.blocks import Block
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.completion import Cost, Filled
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.options import DecodingOptions


class Phase(IntEnum):
    """What the next pass over a row's block is for."""

    FILL = 0  # fill masks, and edit what was filled
    EDIT = 1  # edit a block without masks
    STORE = 2  # remember the keys and values of a finished block
    OVER = 3  # nothing: the row is done, or its slot empty


@dataclass
class Rows:
    """R rows on canvases of at most T - 1 tokens; the last column is no row's.

    numbers: [R, 8] of each row: phase; number of its block; passes over the block that filled or edited, and how many
        of these found no mask in it; all passes; all denoising steps; positions that went through the layers; whether
        all logits were finite.
    tokens: [R, T].
    block_of, slot_number: [R, T], a slot's block and its place among the row's slots; -1 where there is no slot.
    random_numbers: [R, T] float32 in [0, 1), for rules that draw an order.
    prompt: [R, T] bool, what classifier-free guidance masks.
    blocks: [R, B, 6] of each block: start, stop, where its counts begin in `counts`, how many it has, whether its first
        pass is wide, how many slots are before it.
    counts, backs: [R, S], masks that a pass fills at least, and tokens that it takes back; behind a block's last ones 1
        and 0, for all passes that follow.
    remembered: [R, T] float32, the priority that a token had when it was filled; [R, 1] without remasking.
    before, divergences: [R, N + 1, V] and [R, H, T], of KLASS: the distributions of the pass before in every slot, and
        how much they changed in the last passes. [R, 1, 1] else.
    trace: [R, 3, T] float32, of each token: the pass that wrote it, its confidence, how often the slot was written; [R,
        3, 1] without that option.
    facts: [R, 4] of each row: length, number of its last block, tokens of prompt, seed.
    returned: [R, N], columns whose tokens come back; T - 1 behind the last.
    """

    numbers: Tensor
    tokens: Tensor
    block_of: Tensor
    slot_number: Tensor
    random_numbers: Tensor
    prompt: Tensor
    blocks: Tensor
    counts: Tensor
    backs: Tensor
    remembered: Tensor
    before: Tensor
    divergences: Tensor
    trace: Tensor
    facts: Tensor
    returned: Tensor

    def of(self, rows: Tensor) -> Self:
        """A copy of some rows."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Tensor, others: "Rows") -> None:
        """Writes rows, all that there is to know of them."""
        for field in fields(self):
            getattr(self, field.name).index_copy_(0, rows, getattr(others, field.name))

    def note(self, columns: Tensor, written: Tensor, confidence: Tensor, passes: Tensor) -> None:
        """Traces what the pass behind `passes` [R] wrote where `written` [R, W], with this `confidence` [R, W]."""
        at = columns[:, None].expand(-1, 3, -1)  # [R, 3, W]
        before = self.trace.gather(2, at)
        now = torch.stack([(passes + 1.0)[:, None].expand_as(confidence), confidence, before[:, 2] + 1], 1)
        self.trace.scatter_(2, at, now.where(written[:, None], before))

    def traced(self, row: int, n: int) -> tuple[Filled, ...]:
        """The first `n` returned tokens of a row; waits for the device."""
        numbers = self.trace[row][:, self.returned[row, :n]].tolist()
        return tuple(Filled(int(by), sure, max(0, int(writes) - 1)) for by, sure, writes in zip(*numbers, strict=True))

    def to(self, device: torch.device) -> Self:
        """The same on a device; nothing waits for the copies."""
        return type(self)(*(to_device(getattr(self, field.name), device) for field in fields(self)))


@dataclass(frozen=True)
class Sizes:
    """Sizes that all rows of a run share: columns T, blocks B, counts S, returned tokens N, slots, vocabulary V."""

    columns: int
    blocks: int
    counts: int
    returned: int
    slots: int
    vocabulary: int


def rows_of(
    canvases: Sequence[tuple[Canvas, Sequence[Block]]], options: DecodingOptions, sizes: Sizes, pad_token_id: int
) -> Rows:
    """The rows of canvases and their blocks as they begin, on the host. Their seeds draw the orders of random rules."""
    n, is_random = len(canvases), unmasking_rule(options.unmasking).is_random
    compares, takes_back = options.kl_threshold is not None, options.remasking != "none"
    rows = Rows(
        numbers=torch.tensor([Phase.FILL, 0, 0, 0, 0, 0, 0, 1]).repeat(n, 1),
        tokens=torch.full((n, sizes.columns), pad_token_id),
        block_of=torch.full((n, sizes.columns), -1),
        slot_number=torch.full((n, sizes.columns), -1),
        random_numbers=torch.zeros(n, sizes.columns),
        prompt=torch.zeros(n, sizes.columns, dtype=torch.bool),
        blocks=torch.zeros(n, sizes.blocks, 6, dtype=torch.long),
        counts=torch.ones(n, sizes.counts, dtype=torch.long),
        backs=torch.zeros(n, sizes.counts, dtype=torch.long),
        remembered=torch.zeros(n, sizes.columns if takes_back else 1),
        before=torch.zeros(n, *((sizes.slots + 1, sizes.vocabulary) if compares else (1, 1))),
        divergences=torch.zeros(n, *((options.kl_history, sizes.columns) if compares else (1, 1))),
        trace=torch.zeros(n, 3, sizes.columns if options.trace else 1),
        facts=torch.zeros(n, 4, dtype=torch.long),
        returned=torch.full((n, sizes.returned), sizes.columns - 1),
    )
    for row, (canvas, blocks) in enumerate(canvases):
        slots = torch.tensor(canvas.slots)
        rows.tokens[row, : len(canvas.token_ids)] = torch.tensor(canvas.token_ids)
        rows.slot_number[row, slots] = torch.arange(len(slots))
        rows.prompt[row, : canvas.prompt_length] = True
        rows.prompt[row, slots] = False
        if is_random:
            generator = torch.Generator().manual_seed(canvas.seed)
            rows.random_numbers[row, slots] = torch.rand(len(slots), generator=generator)
        counts: list[int] = []
        backs: list[int] = []
        table = []
        for number, block in enumerate(blocks):
            rows.block_of[row, list(block.slots)] = number
            n_before = sum(len(other.slots) for other in blocks[:number])
            table.append([block.start, block.stop, len(counts), len(block.counts), block.is_wide, n_before])
            counts += [*block.counts, 1]
            backs += [*(block.backs or [0] * len(block.counts)), 0]
        rows.blocks[row, : len(blocks)] = torch.tensor(table)
        rows.counts[row, : len(counts)] = torch.tensor(counts, dtype=torch.long)
        rows.backs[row, : len(backs)] = torch.tensor(backs, dtype=torch.long)
        rows.facts[row] = torch.tensor([len(canvas.token_ids), len(blocks) - 1, canvas.prompt_length, canvas.seed])
        rows.returned[row, : canvas.n_returned] = slots[: canvas.n_returned]
        if not blocks[0].slots:
            rows.numbers[row, 0] = Phase.STORE
    return rows


@dataclass(frozen=True)
class Look:
    """What the host sees of a row after a pass.

    written: its returned tokens from the left without a gap; n_written: those that hold a token.
    """

    phase: Phase
    cost: Cost
    is_finite: bool
    written: list[int]
    n_written: int


def look_at(numbers: Sequence[int], returned: list[int], mask_token_id: int) -> Look:
    """From a row's `numbers` and the tokens of its returned slots."""
    phase, _, _, _, passes, steps, positions, is_finite = numbers
    written = returned[: returned.index(mask_token_id)] if mask_token_id in returned else returned
    n_written = len(returned) - returned.count(mask_token_id)
    return Look(Phase(phase), Cost(passes, steps, positions), bool(is_finite), written, n_written)
