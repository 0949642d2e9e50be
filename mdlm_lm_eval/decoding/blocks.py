"""The blocks of a canvas: which columns a pass over a block runs, and how many masks each pass fills."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mdlm_lm_eval.canvas import Canvas, share_steps
from mdlm_lm_eval.decoding.schedules import unmask_counts
from mdlm_lm_eval.families.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions


@dataclass(frozen=True)
class Block:
    """Columns start:stop of a canvas, of which `slots` are decoded; pass i fills at least `counts[i]` masks."""

    start: int
    stop: int
    slots: tuple[int, ...]
    counts: tuple[int, ...]


def attention_in_effect(attention: AttentionPattern, options: DecodingOptions) -> AttentionPattern:
    """What positions see under these options: a block-causal model may be run with other blocks than its own."""
    if attention.is_block_causal and options.block_length is not None:
        return replace(attention, block_length=options.block_length)
    return attention


def causal_blocks(canvas: Canvas, attention: AttentionPattern, options: DecodingOptions) -> tuple[Block, ...]:
    """The blocks of a block-causal model from the first to the last that holds a slot, behind all that is before them.

    What stands before the first slot's block is one block without slots.
    """
    length = attention.block_length or len(canvas.token_ids)
    numbers = [attention.block_of(column, canvas.prompt_length) for column in range(len(canvas.token_ids))]
    first, last = numbers[canvas.slots[0]], numbers[canvas.slots[-1]]
    slots = [tuple(slot for slot in canvas.slots if numbers[slot] == number) for number in range(first, last + 1)]
    steps = _steps_of_blocks(canvas, options, [len(of_block) for of_block in slots])
    start = numbers.index(first)
    before = [Block(0, start, (), ())] if start else []
    blocks: list[Block] = []
    for of_block, n_steps in zip(slots, steps, strict=True):
        stop = start + numbers.count(first + len(blocks))
        blocks.append(Block(start, stop, of_block, _counts(len(of_block), n_steps, length, options)))
        start = stop
    return (*before, *blocks)


def _steps_of_blocks(canvas: Canvas, options: DecodingOptions, lengths: Sequence[int]) -> list[int]:
    if options.steps_per_block is not None:
        return [options.steps_per_block] * len(lengths)
    return share_steps(canvas.steps, lengths)


def _counts(n_masks: int, steps: int, block_length: int, options: DecodingOptions) -> tuple[int, ...]:
    """Masks that each pass fills at least.

    `steps_per_block` is the schedule of a whole block, also where the prompt fills a part of it, as in LLaDA2's and
    SDAR's samplers; A2D's schedule is made from the masks that the block holds.
    """
    whole = options.steps_per_block is not None and options.schedule != "bd3lm"
    of = block_length if whole else n_masks
    if of == 0:
        return ()
    counts: list[int] = []
    for count in unmask_counts(of, min(steps, of), options.schedule):
        count = min(count, n_masks - sum(counts))
        if count:
            counts.append(count)
    return tuple(counts)
