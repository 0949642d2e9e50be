"""Decoding of one canvas, to be read first: blocks one after the other, and passes over each until it has no mask.

It shares with the engine the model and the samplers' `choose`, and computes all else in its own way, so that
`tests/decoding/test_reference.py` can compare the canvases after every pass. It plans equal shares of the masks, takes
the likeliest tokens, and has what most models of blocks need: full and block-causal attention, thresholds, and editing.
Without a cache, each pass runs the whole canvas.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.sampler import View
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions


def decode_one(
    denoiser: Denoiser, canvas: Canvas, options: DecodingOptions, *, end_ids: Collection[int] = ()
) -> list[list[int]]:
    """Returns the canvas after every pass; `end_ids` end an answer of a block-causal model."""
    _check(denoiser, options)
    numbers = _block_numbers(denoiser, canvas, options)
    tokens, sampler = list(canvas.token_ids), way_of(options).sampler
    canvases: list[list[int]] = []
    for block, steps in zip(_blocks(denoiser, canvas, numbers), canvas.block_steps, strict=True):
        shares = _shares(denoiser, block, steps, options)
        n_edits, has_changed = 0, True
        while True:
            masks = [column for column in block if tokens[column] == denoiser.mask_token_id]
            if not masks and (n_edits == sampler.edit_passes(options) or not has_changed):
                break
            n_edits += not masks
            before, tokens = tokens, _after_pass(denoiser, tokens, block, numbers, next(shares), options)
            has_changed = tokens != before
            canvases.append(tokens)
        if denoiser.attention.is_block_causal and any(tokens[column] in end_ids for column in block):
            break
    return canvases


def _check(denoiser: Denoiser, options: DecodingOptions) -> None:
    """Raises NotImplementedError for what would be decoded in another way than the options say."""
    attention = denoiser.attention
    others = options.temperature > 0.0, options.cfg_scale > 0.0, options.small_block_length, options.append_blocks
    if any(others) or options.schedule != "linear" or options.eos_last or options.suppress_eos:
        raise NotImplementedError("the reference loop draws no tokens, and has neither guidance nor other schedules")
    if attention.is_block_causal and (denoiser.shift or attention.causal_context):
        raise NotImplementedError("the reference loop has no finished blocks that predict the next token")


def _block_numbers(denoiser: Denoiser, canvas: Canvas, options: DecodingOptions) -> Tensor:
    """The number [T] of each column's block: a column sees those of its own and lower numbers."""
    attention, columns = denoiser.attention, torch.arange(len(canvas.token_ids))
    if attention.block_length is None:
        return torch.zeros_like(columns)
    begin = 0 if attention.blocks_from == "row_start" else canvas.prompt_length
    numbers = (columns - begin) // (options.block_length or attention.block_length)  # negative in the prompt
    return numbers.clamp(min=-1) if attention.whole_prompt else numbers


def _blocks(denoiser: Denoiser, canvas: Canvas, numbers: Tensor) -> list[list[int]]:
    """The slots of each block."""
    slots = list(canvas.slots)
    if not denoiser.attention.is_block_causal:
        return [[slots.pop(0) for _ in range(length)] for length in canvas.block_lengths]
    of_slots = numbers[slots].tolist()
    return [[slot for slot, its in zip(slots, of_slots, strict=True) if its == n] for n in sorted({*of_slots})]


def _shares(denoiser: Denoiser, block: Sequence[int], steps: int, options: DecodingOptions) -> Iterator[int]:
    """The least number of masks that each pass over a block fills: equal shares, the remainder to the first ones.

    Of a block of which the prompt fills a part, `steps_per_block` plans the whole. After the plan, a pass fills one.
    """
    n_planned, attention = len(block), denoiser.attention
    if options.steps_per_block is not None and attention.block_length is not None:
        n_planned = options.block_length or attention.block_length
        steps = min(options.steps_per_block, n_planned)
    share, rest = divmod(n_planned, steps)
    yield from (share + (step < rest) for step in range(steps))
    while True:
        yield 1


def _after_pass(
    denoiser: Denoiser, tokens: list[int], block: Sequence[int], numbers: Tensor, share: int, options: DecodingOptions
) -> list[int]:
    """The canvas after a pass that fills `share` masks of a block, or more if the options say so."""
    ids, columns = torch.tensor([tokens]), torch.arange(len(tokens))[None]
    sees = numbers[None, :, None] >= numbers[None, None]  # [1, T, T]
    logits = denoiser.window_logits(ids, columns, sees, None).double()  # [T, V]
    if denoiser.shift:  # each output predicts the next token; nothing predicts the first one
        logits = torch.cat([logits[:1], logits[:-1]])
    logits[:, denoiser.mask_token_id] = -torch.inf
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    ordered = probabilities.sort(-1, descending=True).values
    surprises = probabilities * probabilities.clamp(min=1e-300).log()
    confidence, entropy = ordered[:, 0], -surprises.sum(-1)  # [T] each
    rank = {
        "confidence": -ordered[:, 1:].sum(-1) / confidence,  # distinguishes more than numbers near 1 do
        "entropy": -entropy,
        "margin": ordered[:, 0] - ordered[:, 1],
        "left_to_right": -columns[0].double(),
    }[options.unmasking]
    is_slot = torch.zeros_like(ids, dtype=torch.bool)
    is_slot[0, block] = True
    is_mask = ids == denoiser.mask_token_id
    view = View(
        columns=columns,
        tokens=ids,
        masks=is_slot & is_mask,
        filled=is_slot & ~is_mask,
        proposed=probabilities.argmax(-1)[None],
        confidence=confidence[None],
        entropy=entropy[None],
        priority=rank[None],
        fill=torch.tensor([share]),
        back=torch.tensor([0]),
        strict=denoiser.attention.is_block_causal and not denoiser.attention.whole_prompt,
    )
    choice = way_of(options).sampler.choose(view, options)
    after: list[int] = choice.tokens_after(view, denoiser.mask_token_id)[0].tolist()
    return after
