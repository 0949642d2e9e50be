"""Canvases that are decoded together: the facts that hold for all of them, and the blocks and steps of each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from mdlm_lm_eval.decoding.canvas import Canvas, DecodingCall
from mdlm_lm_eval.decoding.sampler import Step
from mdlm_lm_eval.decoding.way import Way
from mdlm_lm_eval.model.devices import up_to_keys, up_to_positions
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


class Layout(NamedTuple):
    """The blocks with slots of canvases of one shape, numbered from 0.

    prompt: the text before them, if a pass runs it by itself.
    before: how many slots stand before each block, and at last the number of all.
    """

    prompt: Block | None
    blocks: Sequence[Block]
    before: Sequence[int]


class Batch:
    """The canvases of a `DecodingCall`, and what all passes over them have in common.

    is_guided: whether each row also runs without its prompt.
    shares_prefixes: whether some canvases begin with a shared prefix.
    shift: whether the model's outputs predict the next token.
    is_whole: whether a canvas is run from its first column on, under full attention and without a cache.
    is_cut: whether a pass over a block neither runs nor sees what follows it.
    runs_later: whether a pass runs all blocks from the row's own on, until no mask is left.
    runs_blocks: whether passes that are not wide run a block alone.
    predicts_next: whether a finished block predicts the token after it, so that it is also run after its last edit.
    fills_next: whether that token is filled at once, so that a next block of one mask needs no pass to fill it.
    stores: whether finished blocks are run once more.
    is_strict: whether a mask must exceed `confidence_threshold`: in block diffusion, except Nemotron-Labs-Diffusion.
    n_edits: the most passes over a block that only edit.
    stops_at_end: whether an end of text in a finished block ends a row, as in the authors' samplers of blocks. Passes
        over whole canvases go on after it without `early_exit`.
    leaves_out: whether blocks that are not returned are left out: with `early_exit`, if they change none before them.
    leaves_masks_out: whether masks that are not returned are left out of a block that one pass fills. That pass must be
        the block's only one, and nothing else may be written, such as an end of thinking.
    layouts: each canvas's layout; canvases of the same shape share one.
    one_a_pass: whether every planned step fills one mask.
    n_columns: T, the most columns of a canvas, and one more that is no row's.
    widest_block, most_slots: the most columns and slots of a block.
    """

    def __init__(self, call: DecodingCall) -> None:
        self.call, self.way, self.canvases, self.denoiser = call, call.way, call.canvases, call.denoiser
        self.device: torch.device = call.denoiser.device
        self.mask_token_id, self.end_ids, self.shift = call.denoiser.mask_token_id, call.end_ids, call.denoiser.shift
        options = self.options = call.options
        self.on_gpu, self.is_guided = self.device.type == "cuda", options.cfg_scale > 0.0
        remembers = call.way.cache.remembers
        may_share = remembers and not options.batch_invariant
        self.shares_prefixes = may_share and any(canvas.prefix is not None for canvas in self.canvases)
        self.is_strict = call.way.attention.is_block_causal and not call.way.attention.whole_prompt
        self.n_edits = call.way.sampler.edit_passes(options)
        self._set_passes()
        self._set_ends()
        self.layouts = self._layouts()
        blocks = [block for layout in self.layouts for block in layout.blocks]
        self.one_a_pass = all(step == Step(1) for block in blocks for step in block.steps)
        self.widest_block = max(block.stop - block.start for block in blocks)
        self.most_slots = max(len(block.slots) for block in blocks)
        longest = max(len(canvas.token_ids) for canvas in self.canvases)
        self.n_columns = columns_of(longest, is_padded=self.on_gpu and remembers)
        if options.batch_invariant:
            self.n_columns = up_to_positions(longest) + 1

    def _set_passes(self) -> None:
        """Sets the facts that, with a canvas, decide which passes run over it."""
        way, options, attention, cache = self.way, self.options, self.way.attention, self.way.cache
        is_causal = attention.is_block_causal
        self.is_whole = not is_causal and not cache.remembers
        self.is_cut = is_causal or options.append_blocks
        self.runs_later = way.needs.later_blocks
        self.runs_blocks = cache.runs_blocks and not self.runs_later
        self.predicts_next = is_causal and (self.shift or attention.causal_context) and not self.runs_later
        self.fills_next = self.predicts_next and (attention.blocks_from == "row_start" or attention.causal_context)
        self.stores = cache.stores_blocks or self.predicts_next

    def _set_ends(self) -> None:
        """Sets the facts that decide where rows end, and what of a canvas is left out."""
        way, options = self.way, self.options
        has_blocks = not self.is_whole or options.append_blocks or way.sampler.ends_at_eos
        self.stops_at_end = has_blocks and not self.runs_later
        self.leaves_out = self.is_whole and way.exits_early
        is_final = way.sampler.settled == "at once" and options.max_thinking_tokens is None
        self.leaves_masks_out = self.leaves_out and is_final and not options.is_parallel

    def _layouts(self) -> Sequence[Layout]:
        of_shapes: dict[object, Layout] = {}
        layouts = []
        for canvas in self.canvases:
            numbers = len(canvas.token_ids), canvas.prompt_length, canvas.n_returned, len(canvas.prefix or ())
            shape = *numbers, canvas.slots, canvas.block_lengths, canvas.block_steps
            if shape not in of_shapes:
                is_causal = self.way.attention.is_block_causal
                blocks = _causal_blocks(canvas, self) if is_causal else _blocks_of_slots(canvas, self)
                prompt = None if blocks[0].slots else blocks.pop(0)
                before = [0, *itertools.accumulate(len(block.slots) for block in blocks)]
                of_shapes[shape] = Layout(prompt if self.stores else None, blocks, before)
            layouts.append(of_shapes[shape])
        return layouts


def columns_of(longest: int, *, is_padded: bool) -> int:
    """Columns of canvases of up to `longest` tokens, rounded up if `is_padded`, and one more that is no row's."""
    return (up_to_keys(longest) if is_padded else longest) + 1


def _blocks_of_slots(canvas: Canvas, batch: Batch) -> list[Block]:
    """The semi-autoregressive blocks of a model with full attention.

    Without a cache, every pass runs the canvas whole. Blocks and masks that no returned token needs may be left out.
    """
    blocks = []
    start = 0
    for length, n_steps in zip(canvas.block_lengths, canvas.block_steps, strict=True):
        if batch.leaves_out and start >= canvas.n_returned and not batch.runs_later:
            break
        slots = canvas.slots[start : start + length]
        steps = _steps_of_slots(length, n_steps, batch)
        first = 0 if batch.is_whole else slots[0]
        stop = len(canvas.token_ids) if batch.is_whole and not batch.is_cut else slots[-1] + 1
        if batch.leaves_masks_out and len(steps) == 1 and steps[0].fill >= length:
            slots = slots[: canvas.n_returned - start]
        blocks.append(Block(first, stop, stop, slots, _until_filled(steps, batch.way)))
        start += length
    return blocks


def _steps_of_slots(n_masks: int, n_steps: int, batch: Batch) -> Sequence[Step]:
    """The steps over a block under full attention.

    With a cache and a shifted model, the first pass fills the first mask and no other, as in Fast-dLLM's sampler for
    Dream; the schedule's other steps fill the rest.
    """
    after_one = batch.shift and not batch.is_whole and n_masks > 1
    if after_one and n_steps == 1:
        raise OptionError(
            f"cache={batch.options.cache} with one step a block of {n_masks} tokens does not work with a model whose "
            "logits are shifted: the first step fills one token; take more steps"
        )
    return batch.way.sampler.plan(n_masks, n_steps, batch.options, after_one=after_one)


def _until_filled(steps: Sequence[Step], way: Way) -> Sequence[Step]:
    """The planned steps, and one that is repeated until no mask is left: each pass fills at least one."""
    return steps if way.sampler.ends_as_planned else [*steps, Step(1)]


def _causal_blocks(canvas: Canvas, batch: Batch) -> list[Block]:
    """The blocks of a block-causal model that hold slots.

    The columns before the first of these, and after a shared prefix, are one block without slots.
    """
    way = batch.way
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
            blocks.append(Block(start, stop, stop, of_block, _until_filled(steps, way)))
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
