"""The rows that are being decoded, as tensors on the model's device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.program import OVER, Numbers
from mdlm_lm_eval.model.devices import to_device

if TYPE_CHECKING:
    from mdlm_lm_eval.decoding.run import Run

# The fields that a pass changes.
_CHANGING = ("at", "best", "steps", "tokens", "state", "confidence", "first", "drafts")


class Plane(IntEnum):
    """The fields of each of a window's G places; unused places have column T - 1.

    If a finished block predicts the next token, the first place is that of the column after the block.
    """

    COLUMN = 0
    EXPECTED = 1  # the mask token where the pass may fill a mask, -1 elsewhere
    ASKED = 2  # 1 where logits are needed even without a mask
    OUTPUT = 3  # number of the output that predicts the token, counted from the block's first one
    PART = 4  # number of the small block


@dataclass
class Rows:
    """R rows on canvases of at most T - 1 tokens; the last column is no row's. Fields that no option needs are None.

    at: [R], the record of the next pass.
    best: [R] float32, NaN if logits of the last pass were not finite.
    tokens: [R, T].
    records: [R, S, F], the row's program; the last record is that of rows that are over.
    windows: [R, 2 B + 1, 5, G], the fields of `Plane` for the windows of narrow passes; the last window is empty.
        [R, 1, 5, 0] if there are no such passes.
    block_of, slot_number: [R, T], the number of a slot's block (-2 elsewhere) and its number among the row's slots
        (-1 elsewhere).
    facts: [R, 4], each row's length, tokens of prompt, seed, and tokens that are returned.
    shown: [R, N], columns whose tokens the host looks at, beginning with those that are returned; T - 1 after the last.
    state: the sampler's own tensors [R, ...] by name.
    steps: [R], denoising steps so far, if tokens are drawn.
    random_numbers: [R, T] float32 in [0, 1), for rules that draw an order.
    prompt: [R, T] bool, the tokens that classifier-free guidance masks.
    first: [R, 3] float32, the numbers of `FirstToken`, with labels.
    drafts: [R, 2, T], if passes run several views: the rank from 1 of each drafted mask (0 elsewhere), and its token.
    confidence: [R, T] float32, with a trace: the probability of each token when it was written, 0 if no pass wrote it.
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
    state: dict[str, Tensor]
    steps: Any
    random_numbers: Any
    prompt: Any
    confidence: Any
    first: Any
    drafts: Any

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        values: dict[str, Any] = {}
        for field in fields(self):
            each = getattr(self, field.name)
            if isinstance(each, dict):
                values[field.name] = {name: change(tensor) for name, tensor in each.items()}
            else:
                values[field.name] = None if each is None else change(each)
        return type(self)(**values)

    def of(self, rows: Tensor | slice) -> Self:
        """Some rows; a tensor of numbers selects copies, a slice selects views."""
        return self._each(lambda each: each[rows])

    def to(self, device: torch.device) -> Self:
        """The rows on another device; nothing waits for the copies."""
        return self._each(lambda each: to_device(each, device))

    def put(self, rows: Tensor, others: "Rows", *, changes_only: bool = False) -> None:
        """Overwrites rows, in all fields or with `changes_only` in those that a pass changes."""
        for name in _CHANGING if changes_only else [field.name for field in fields(self)]:
            own, theirs = getattr(self, name), getattr(others, name)
            if isinstance(own, dict):
                for key, tensor in own.items():
                    tensor.index_copy_(0, rows, theirs[key])
            elif own is not None:
                own.index_copy_(0, rows, theirs)


def rows_of(run: "Run", indices: Sequence[int]) -> Rows:
    """The rows of canvases and their programs as they begin, on the host. Each canvas's seed draws its random order."""
    options, n, of_columns = run.options, len(indices), (len(indices), run.n_columns)
    tokens, slot_number = np.full(of_columns, run.denoiser.pad_token_id), np.full(of_columns, -1)
    block_of, shown = np.full(of_columns, -2), np.full((n, run.n_shown), run.n_columns - 1)
    facts = np.zeros((n, 4), int)
    records = np.tile(OVER, (n, run.n_records + 1, 1))
    prompt = np.zeros(of_columns, bool) if options.cfg_scale > 0.0 else None
    random_numbers = torch.zeros(of_columns) if run.is_random else None
    for row, index in enumerate(indices):
        canvas, program = run.canvases[index], run.programs[index]
        slots = np.array(canvas.slots)
        tokens[row, : len(canvas.token_ids)] = canvas.token_ids
        slot_number[row, slots] = np.arange(len(slots))
        block_of[row, program.slots] = program.numbers
        records[row, : len(program.records)] = program.records
        facts[row] = len(canvas.token_ids), canvas.prompt_length, canvas.seed, canvas.n_returned
        shown[row, : len(slots)] = slots[: run.n_shown]
        if prompt is not None:
            prompt[row, : canvas.prompt_length] = True
            prompt[row, slots] = False
        if random_numbers is not None:
            generator = torch.Generator().manual_seed(canvas.seed)
            random_numbers[row, canvas.slots] = torch.rand(len(slots), generator=generator)
    host = torch.device("cpu")
    return Rows(
        at=torch.zeros(n, dtype=torch.long),
        best=torch.zeros(n),
        tokens=torch.from_numpy(tokens),
        records=torch.from_numpy(records),
        windows=torch.from_numpy(_windows(run, indices)),
        block_of=torch.from_numpy(block_of),
        slot_number=torch.from_numpy(slot_number),
        facts=torch.from_numpy(facts),
        shown=torch.from_numpy(shown),
        state=dict(run.sampler.state(n, run.n_columns, host)),
        steps=torch.zeros(n, dtype=torch.long) if options.temperature > 0.0 else None,
        random_numbers=random_numbers,
        prompt=None if prompt is None else torch.from_numpy(prompt),
        confidence=torch.zeros(of_columns) if options.trace else None,
        first=None if run.label_ids is None else torch.zeros(n, 3),
        drafts=torch.zeros(n, 2, run.n_columns, dtype=torch.long) if run.needs.views > 1 else None,
    )


def _windows(run: "Run", indices: Sequence[int]) -> Numbers:
    """`Rows.windows`, the tables of narrow passes."""
    mask_token_id, last, next_places = run.denoiser.mask_token_id, run.n_columns - 1, int(run.predicts_next)
    width = run.window + next_places if run.window else 0
    windows = np.full((len(indices), 2 * run.n_blocks + 1 if width else 1, len(Plane), width), -1)
    windows[:, :, Plane.COLUMN], windows[:, :, Plane.ASKED] = last, 0
    windows[:, :, Plane.OUTPUT, next_places:] = (np.arange(run.window) - run.shift).clip(min=0)
    if not width:
        return windows
    for row, index in enumerate(indices):
        canvas, program = run.canvases[index], run.programs[index]
        starts, stops = program.bounds.T
        narrow, numbers = program.is_narrow.nonzero()[0], program.numbers
        of_blocks = windows[row, : 2 * len(starts)].reshape(-1, 2, len(Plane), width)  # [B, 2, 5, G]
        columns = starts[narrow, None] + np.arange(run.window)
        columns = np.where(columns < stops[narrow, None], columns, last)
        of_blocks[narrow, :, Plane.COLUMN, next_places:] = columns[:, None]
        places = program.slots - starts[numbers] + next_places
        of_blocks[numbers, 0, Plane.EXPECTED, places] = mask_token_id
        of_blocks[numbers, 0, Plane.ASKED, places] = run.needs.filled
        parts = np.arange(-next_places, run.window) // (run.options.small_block_length or run.window)
        of_blocks[narrow, 0, Plane.PART] = parts
        if not run.predicts_next:
            continue
        of_blocks[narrow, 1, Plane.ASKED, 0] = 1
        of_blocks[narrow, :, Plane.OUTPUT, 0] = (stops - starts - 1)[narrow, None]
        if run.fills_next:
            fills = narrow[np.isin(stops[narrow], np.array(canvas.slots))]
            of_blocks[fills, 1, Plane.COLUMN, 0] = stops[fills]
            of_blocks[fills, 1, Plane.EXPECTED, 0] = mask_token_id
    return windows
