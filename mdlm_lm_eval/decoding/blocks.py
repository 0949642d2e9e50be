"""The blocks of a canvas: which columns a pass over a block runs, and how many masks each pass fills."""

from dataclasses import dataclass

from mdlm_lm_eval.decoding.canvas import Canvas, share_steps
from mdlm_lm_eval.decoding.schedules import least_counts, unmask_counts, unmask_counts_after_one
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError


@dataclass(frozen=True)
class Block:
    """Columns start:stop of a canvas, of which `slots` are decoded; pass i fills at least `counts[i]` masks."""

    start: int
    stop: int
    slots: tuple[int, ...]
    counts: tuple[int, ...]


def causal_blocks(canvas: Canvas, attention: AttentionPattern, options: DecodingOptions) -> tuple[Block, ...]:
    """The blocks of a block-causal model from the first to the last that holds a slot, behind all that is before them.

    What stands before the first slot's block is one block without slots.
    """
    length = attention.block_length or len(canvas.token_ids)
    numbers = [attention.block_of(column, canvas.prompt_length) for column in range(len(canvas.token_ids))]
    first, last = numbers[canvas.slots[0]], numbers[canvas.slots[-1]]
    slots = [tuple(slot for slot in canvas.slots if numbers[slot] == number) for number in range(first, last + 1)]
    steps = share_steps(canvas.steps, [len(of_block) for of_block in slots])
    start = numbers.index(first)
    before = [Block(0, start, (), ())] if start else []
    blocks: list[Block] = []
    for of_block, n_steps in zip(slots, steps, strict=True):
        stop = start + numbers.count(first + len(blocks))
        counts = _counts(len(of_block), options.steps_per_block or n_steps, length, options)
        blocks.append(Block(start, stop, of_block, counts))
        start = stop
    return (*before, *blocks)


def cached_blocks(canvas: Canvas, options: DecodingOptions, *, first_alone: bool) -> tuple[Block, ...]:
    """The semi-autoregressive blocks of a model with full attention that remembers keys and values.

    `first_alone`: a block's first pass fills its first mask and no other, as in Fast-dLLM's sampler for Dream. The
    schedule's other steps share out the rest, and those that fill nothing are run and counted as there.
    """
    blocks = []
    start = 0
    for length, steps in zip(canvas.block_lengths, canvas.block_steps, strict=True):
        slots = canvas.slots[start : start + length]
        start += length
        if first_alone and length > 1 and steps == 1:
            raise OptionError(
                f"cache={options.cache} with one step a block of {length} tokens does not work with a model whose "
                "logits are shifted: the first step fills one token; take more steps"
            )
        if options.is_parallel:
            counts = [1] * steps
        elif first_alone and length > 1:
            counts = unmask_counts_after_one(length, steps, options.schedule)
        else:
            counts = [count for count in unmask_counts(length, steps, options.schedule) if count]
        blocks.append(Block(slots[0], slots[-1] + 1, slots, tuple(counts)))
    return tuple(blocks)


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
    counts_of = least_counts if options.is_parallel else unmask_counts
    for count in counts_of(of, min(steps, of), options.schedule):
        count = min(count, n_masks - sum(counts))
        if count:
            counts.append(count)
    return tuple(counts)
