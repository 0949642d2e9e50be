"""The blocks of a canvas: which columns a pass over a block runs, and how many masks each pass fills."""

from dataclasses import dataclass

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.remasking import REMASKING
from mdlm_lm_eval.decoding.schedules import least_counts, unmask_counts, unmask_counts_after_one
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, OptionError


@dataclass(frozen=True)
class Block:
    """Columns start:stop of a canvas, of which `slots` are decoded; pass i fills at least `counts[i]` masks, or one.

    Under remasking, pass i takes `backs[i]` tokens back, and the last pass is the last one of `counts`.
    `is_wide`: its first pass also runs columns outside of start:stop, or more of them than a block has.
    """

    start: int
    stop: int
    slots: tuple[int, ...]
    counts: tuple[int, ...] = ()
    backs: tuple[int, ...] = ()
    is_wide: bool = False


def blocks_of(
    canvas: Canvas, attention: AttentionPattern, options: DecodingOptions, *, shift: bool
) -> tuple[Block, ...]:
    """The blocks of a canvas, in the order in which they are decoded."""
    if attention.is_block_causal:
        blocks = _causal_blocks(canvas, attention, options)
        # Without anything to remember or to tell what stands behind it, a block without slots needs no pass.
        is_needed = shift or attention.causal_context or options.cache != "none"
        return tuple(block for block in blocks if block.slots or is_needed)
    return _cached_blocks(canvas, options, shift=shift) if options.is_approximate else _whole_blocks(canvas, options)


def _whole_blocks(canvas: Canvas, options: DecodingOptions) -> tuple[Block, ...]:
    """The semi-autoregressive blocks where every pass runs the whole canvas.

    Steps that would unmask nothing (Dream's schedule has some) change nothing and are left out, and with `early_exit`
    so are blocks whose tokens are not returned, since later blocks never change earlier ones.
    """
    blocks = []
    start = 0
    for length, steps in zip(canvas.block_lengths, canvas.block_steps, strict=True):
        slots = canvas.slots[start : start + length]
        if options.exits_early and start >= canvas.n_returned:
            break
        counts = tuple(filter(None, unmask_counts(length, steps, options.schedule)))
        backs: tuple[int, ...] = ()
        if options.remasking != "none":
            counts, backs = REMASKING[options.remasking](length, steps, options)
        elif options.kl_threshold is not None:
            counts = (*counts[:-1], length)  # what the passes before left
        elif options.is_parallel:
            counts = ()
        elif steps == 1 and options.exits_early and options.max_thinking_tokens is None:
            # All of it at once: what is not returned need not be predicted, unless an end of thinking stands there.
            slots = slots[: canvas.n_returned - start]
        stop = canvas.slots[start + length - 1] + 1 if options.append_blocks else len(canvas.token_ids)
        blocks.append(Block(0, stop, slots, counts, backs))
        start += length
    return tuple(blocks)


def _causal_blocks(canvas: Canvas, attention: AttentionPattern, options: DecodingOptions) -> tuple[Block, ...]:
    """The blocks of a block-causal model from the first to the last that holds a slot, behind all that is before them.

    What stands before the first slot's block is one block without slots.
    """
    length = attention.block_length or len(canvas.token_ids)
    numbers = [attention.block_of(column, canvas.prompt_length) for column in range(len(canvas.token_ids))]
    first, last = numbers[canvas.slots[0]], numbers[canvas.slots[-1]]
    slots = [tuple(slot for slot in canvas.slots if numbers[slot] == number) for number in range(first, last + 1)]
    per_block, shares = options.steps_per_block, iter(canvas.block_steps)
    if per_block is not None and options.schedule == "llada2":
        per_block = min(per_block, canvas.n_returned)
    start = numbers.index(first)
    blocks = [Block(0, start, (), is_wide=options.cache != "none")] if start else []
    for number, of_block in enumerate(slots, start=first):
        stop = start + numbers.count(number)
        n_steps = next(shares) if of_block else 0
        counts = _counts(len(of_block), per_block or n_steps, length, options)
        blocks.append(Block(start, stop, of_block, counts))
        start = stop
    return tuple(blocks)


def _cached_blocks(canvas: Canvas, options: DecodingOptions, *, shift: bool) -> tuple[Block, ...]:
    """The semi-autoregressive blocks of a model with full attention that remembers keys and values.

    Of a shifted model, a block's first pass fills its first mask and no other, as in Fast-dLLM's sampler for Dream. The
    schedule's other steps share out the rest, and those that fill nothing are run and counted as there.
    """
    blocks = []
    start = 0
    for length, steps in zip(canvas.block_lengths, canvas.block_steps, strict=True):
        slots = canvas.slots[start : start + length]
        start += length
        if shift and length > 1 and steps == 1:
            raise OptionError(
                f"cache={options.cache} with one step a block of {length} tokens does not work with a model whose "
                "logits are shifted: the first step fills one token; take more steps"
            )
        if options.is_parallel:
            counts = []
        elif shift and length > 1:
            counts = unmask_counts_after_one(length, steps, options.schedule)
        else:
            counts = [count for count in unmask_counts(length, steps, options.schedule) if count]
        blocks.append(Block(slots[0], slots[-1] + 1, slots, tuple(counts), is_wide=True))
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
