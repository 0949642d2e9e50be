"""The blocks of a canvas: the columns that passes over a block run, and the steps that are planned for it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.sampler import Step
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.options import OptionError


@dataclass(frozen=True)
class Block:
    """Columns start:stop of a canvas, of which `slots` are decoded by the planned `steps`.

    steps: the last one is repeated until no mask is left.
    end: the column after the text that follows the block without a slot. A pass that stores the block runs the text,
        too, so that text between slots costs no pass of its own.
    """

    start: int
    stop: int
    end: int
    slots: tuple[int, ...]
    steps: Sequence[Step] = ()


@dataclass(frozen=True)
class Structure:
    """The facts that, with a canvas, decide which passes run over it.

    shift: whether the model's outputs predict the next token.
    """

    way: Way
    shift: bool

    @cached_property
    def is_whole(self) -> bool:
        """Whether a canvas is run from its first column on, under full attention and without a cache."""
        return not self.way.attention.is_block_causal and not self.way.cache.remembers

    @cached_property
    def is_cut(self) -> bool:
        """Whether a pass over a block neither runs nor sees what follows it."""
        return self.way.attention.is_block_causal or self.way.options.append_blocks

    @cached_property
    def runs_later(self) -> bool:
        """Whether a pass runs all blocks from the row's own on, until no mask is left."""
        return self.way.needs.later_blocks

    @cached_property
    def runs_blocks(self) -> bool:
        """Whether passes that are not wide run a block alone."""
        return self.way.cache.runs_blocks and not self.runs_later

    @cached_property
    def predicts_next(self) -> bool:
        """Whether a finished block predicts the token after it, so that it is also run after its last edit."""
        attention = self.way.attention
        return attention.is_block_causal and (self.shift or attention.causal_context) and not self.runs_later

    @cached_property
    def fills_next(self) -> bool:
        """Whether that token is filled at once, so that a next block of one mask needs no pass to fill it."""
        attention = self.way.attention
        return self.predicts_next and (attention.blocks_from == "row_start" or attention.causal_context)

    @cached_property
    def stores(self) -> bool:
        """Whether finished blocks are run once more."""
        return self.way.cache.stores_blocks or self.predicts_next

    @cached_property
    def is_strict(self) -> bool:
        """Whether a mask must exceed `confidence_threshold`: in block diffusion, except Nemotron-Labs-Diffusion."""
        return self.way.attention.is_block_causal and not self.way.attention.whole_prompt

    @cached_property
    def n_edits(self) -> int:
        """The most passes over a block that only edit."""
        return self.way.sampler.edit_passes(self.way.options)

    @cached_property
    def after_plan(self) -> Sequence[Step]:
        """The step that follows the planned ones until no mask is left: each pass fills at least one."""
        return [] if self.way.sampler.ends_as_planned else [Step(1)]

    @cached_property
    def stops_at_end(self) -> bool:
        """Whether an end of text in a finished block ends a row, as in the authors' samplers of blocks.

        Passes over whole canvases go on after it without `early_exit`.
        """
        has_blocks = not self.is_whole or self.way.options.append_blocks or self.way.sampler.ends_at_eos
        return has_blocks and not self.runs_later

    @cached_property
    def leaves_out(self) -> bool:
        """Whether blocks that are not returned are left out: with `early_exit`, if they change none before them."""
        return self.is_whole and self.way.exits_early

    @cached_property
    def leaves_masks_out(self) -> bool:
        """Whether masks that are not returned are left out of a block that one pass fills.

        That pass must be the block's only one, and nothing else may be written, such as an end of thinking.
        """
        options = self.way.options
        is_final = self.way.sampler.settled == "at once" and options.max_thinking_tokens is None
        return self.leaves_out and is_final and not options.is_parallel


class Layout(NamedTuple):
    """The blocks with slots of canvases of one shape, numbered from 0.

    prompt: the text before them, if it is run by itself.
    before: how many slots stand before each block, and at last the number of all.
    """

    prompt: Block | None
    blocks: Sequence[Block]
    before: Sequence[int]

    @classmethod
    def of(cls, canvas: Canvas, structure: Structure) -> "Layout":
        """The layout of a canvas."""
        is_causal = structure.way.attention.is_block_causal
        blocks = _causal_blocks(canvas, structure) if is_causal else _blocks_of_slots(canvas, structure)
        prompt = None if blocks[0].slots else blocks.pop(0)
        if not structure.stores:
            prompt = None  # it needs no pass
        return cls(prompt, blocks, [0, *itertools.accumulate(len(block.slots) for block in blocks)])


def _blocks_of_slots(canvas: Canvas, structure: Structure) -> list[Block]:
    """The semi-autoregressive blocks of a model with full attention.

    Without a cache, every pass runs the canvas whole. Blocks and masks that no returned token needs may be left out.
    """
    blocks = []
    start = 0
    is_whole = structure.is_whole
    for length, n_steps in zip(canvas.block_lengths, canvas.block_steps, strict=True):
        if structure.leaves_out and start >= canvas.n_returned and not structure.runs_later:
            break
        slots = canvas.slots[start : start + length]
        steps = _steps_of_slots(length, n_steps, structure)
        first = 0 if is_whole else slots[0]
        stop = len(canvas.token_ids) if is_whole and not structure.is_cut else slots[-1] + 1
        if structure.leaves_masks_out and len(steps) == 1 and steps[0].fill >= length:
            slots = slots[: canvas.n_returned - start]
        blocks.append(Block(first, stop, stop, slots, [*steps, *structure.after_plan]))
        start += length
    return blocks


def _steps_of_slots(n_masks: int, n_steps: int, structure: Structure) -> Sequence[Step]:
    """The steps over a block under full attention.

    With a cache and a shifted model, the first pass fills the first mask and no other, as in Fast-dLLM's sampler for
    Dream; the schedule's other steps fill the rest.
    """
    options = structure.way.options
    after_one = structure.shift and not structure.is_whole and n_masks > 1
    if after_one and n_steps == 1:
        raise OptionError(
            f"cache={options.cache} with one step a block of {n_masks} tokens does not work with a model whose "
            "logits are shifted: the first step fills one token; take more steps"
        )
    return structure.way.sampler.plan(n_masks, n_steps, options, after_one=after_one)


def _causal_blocks(canvas: Canvas, structure: Structure) -> list[Block]:
    """The blocks of a block-causal model that hold slots.

    The columns before the first of these, and after a shared prefix, are one block without slots.
    """
    way = structure.way
    attention, options = way.attention, way.options
    length = attention.block_length or len(canvas.token_ids)
    numbers = [attention.block_of(column, canvas.prompt_length) for column in range(len(canvas.token_ids))]
    first, last = numbers[canvas.slots[0]], numbers[canvas.slots[-1]]
    slots = [tuple(slot for slot in canvas.slots if numbers[slot] == number) for number in range(first, last + 1)]
    per_block, shares = options.steps_per_block, iter(canvas.block_steps)
    if per_block is not None and options.schedule == "llada2":
        per_block = min(per_block, canvas.n_returned)
    start = numbers.index(first)
    shared = len(canvas.prefix or ()) if way.cache.remembers else 0
    blocks = [Block(shared, start, start, ())] if start else []
    for number, of_block in enumerate(slots, start=first):
        stop = start + numbers.count(number)
        if of_block:
            steps = _causal_steps(len(of_block), per_block or next(shares), length, way)
            blocks.append(Block(start, stop, stop, of_block, [*steps, *structure.after_plan]))
        else:
            blocks[-1] = replace(blocks[-1], end=stop)
        start = stop
    return blocks


def _causal_steps(n_masks: int, n_steps: int, block_length: int, way: Way) -> list[Step]:
    """The steps over a block that holds `n_masks` masks.

    `steps_per_block` is the plan of a whole block, even if the prompt fills a part of it, as in LLaDA2's and SDAR's
    samplers. A2D's plan is made for the masks that the block holds.
    """
    options = way.options
    is_whole = options.steps_per_block is not None and options.schedule != "bd3lm"
    n_planned = block_length if is_whole else n_masks
    steps: list[Step] = []
    left = n_masks
    for step in way.sampler.plan(n_planned, min(n_steps, n_planned), options):
        fill = min(step.fill, left)
        if fill or step.back:
            steps.append(step._replace(fill=fill))
        left += step.back - fill
    return steps
