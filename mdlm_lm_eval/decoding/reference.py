"""Decoding of one canvas, to be read from top to bottom: without a cache, batches, or code that is only for speed.

It uses the same samplers, rules, schedules and attention patterns as the engine, which must give the same canvases
after every pass (`tests/test_reference.py`). It has no early exit, no end of thinking and no trace.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.blocks import Block, Structure, blocks_of
from mdlm_lm_eval.decoding.caches import CACHES
from mdlm_lm_eval.decoding.candidates import Proposer, WhereMasked, uniform_numbers
from mdlm_lm_eval.decoding.canvas import Canvas, attention_in_effect
from mdlm_lm_eval.decoding.hindsight import Shadow
from mdlm_lm_eval.decoding.history import History
from mdlm_lm_eval.decoding.sampler import Answer, Choice, Step, View
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions


def decode_one(
    denoiser: Denoiser,
    canvas: Canvas,
    options: DecodingOptions,
    *,
    banned_ids: Collection[int] = (),
    end_ids: Collection[int] = (),
    token_frequencies: Tensor | None = None,
    followed: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Returns the canvas after every pass; `banned_ids` are never written, `end_ids` end an answer.

    `followed` holds canvases of another sampler: each pass begins with the next of them instead of the canvas that the
    last pass made, and decoding ends with the last but one.
    """
    banned = {denoiser.mask_token_id, *banned_ids}
    row = _Row(denoiser, canvas, options, Proposer(options, banned, end_ids, token_frequencies, needs_entropy=True))
    sampler, canvases = options.way, []
    for number, block in enumerate(row.blocks):
        steps = block.steps if sampler.ends_as_planned else [*block.steps, Step(1)]
        n_passes = n_edits = 0
        has_changed = True
        while block.slots:
            if sampler.ends_as_planned:
                is_over = n_passes == len(steps)
            else:
                has_masks = bool(row.masks(number).any())
                is_over = not has_masks and (n_edits == sampler.edit_passes(options) or not has_changed)
                n_edits += not has_masks
            if is_over:
                break
            before = row.tokens.clone()
            at = min(n_passes, len(steps) - 1)
            row.fill(number, steps[at], at)
            canvases.append(row.tokens[0, :-1].tolist())
            if followed is not None:
                row.tokens[0, :-1] = torch.tensor(followed[len(canvases)])
                if len(canvases) == len(followed) - 1:
                    return canvases
            has_changed = not before.equal(row.tokens)
            n_passes += 1
        if row.ends_with(number):
            break
        if row.structure.predicts_next and number + 1 < len(row.blocks):  # a finished block is run once more
            row.fill_next(block)
            canvases.append(row.tokens[0, :-1].tolist())
    return canvases


class _Row:
    """A canvas that is decoded: `tokens` [1, T], of which the last is only padding."""

    def __init__(self, denoiser: Denoiser, canvas: Canvas, options: DecodingOptions, proposer: Proposer) -> None:
        self.denoiser, self.canvas, self.options, self.proposer = denoiser, canvas, options, proposer
        self.n_steps = 0
        attention = attention_in_effect(denoiser.attention, options)
        self.structure = Structure(attention, options, CACHES["none"], shift=denoiser.shift)
        self.blocks, self.needs = blocks_of(canvas, self.structure), self.structure.needs
        self.tokens = torch.tensor([[*canvas.token_ids, denoiser.pad_token_id]])
        self.slot_number = torch.full_like(self.tokens, -1)
        self.slot_number[0, list(canvas.slots)] = torch.arange(len(canvas.slots))
        self.block_of = torch.full_like(self.tokens, -2)
        for number, block in enumerate(self.blocks):
            self.block_of[0, list(block.slots)] = number
        n_columns = self.tokens.shape[1]
        self.state = options.way.state(1, n_columns, torch.device("cpu"))
        sizes = len(canvas.slots), denoiser.vocab_size, max(1, self.needs.history), n_columns
        self.history = History(1, *sizes, torch.device("cpu")) if self.needs.history else None
        generator = torch.Generator().manual_seed(canvas.seed)
        self.order = torch.zeros(1, n_columns)
        self.order[0, list(canvas.slots)] = torch.rand(len(canvas.slots), generator=generator)

    def masks(self, number: int) -> Tensor:
        """[1, T] bool, the masks of a block."""
        return (self.tokens == self.denoiser.mask_token_id) & (self.block_of == number)

    def fill(self, number: int, step: Step, at: int) -> None:
        """One denoising step over a block."""
        block, needs = self.blocks[number], self.needs
        in_reach = self.block_of == number
        if needs.earlier_blocks:
            in_reach = (self.block_of >= 0) & (self.block_of <= number)
        if needs.later_blocks:
            in_reach = self.block_of >= number
        is_mask = self.tokens == self.denoiser.mask_token_id
        masks, filled = in_reach & is_mask, in_reach & ~is_mask
        fillable = masks
        if (small := self.options.small_block_length) is not None:
            part = (torch.arange(self.tokens.shape[1]) - block.start) // small
            fillable = masks & (part == part.masked_fill(~masks[0], self.tokens.shape[1]).min())
        wanted = fillable | filled if needs.proposals_for_filled else fillable
        if needs.history:
            wanted = wanted | (self.block_of == number + 1)
        shadow, n_before = None, self.slot_number[0, block.slots[0]]
        if needs.hindsight:
            shadow = Shadow.of(self, torch.tensor([number]), n_before[None], len(block.slots))
        logits = self._logits(block, shadow)
        columns = wanted[0].nonzero().squeeze(1)
        outputs = (columns - int(self.denoiser.shift)).clamp(min=0)
        view = self._view(logits[outputs], columns, fillable, filled, step, at, n_before)
        if shadow is not None:
            places = torch.arange(len(block.slots))
            of_shadow = logits[-len(block.slots) :]
            of_shadow[:, list(self.proposer.banned_ids)] = -torch.inf
            beliefs = shadow.hindsight(of_shadow, torch.zeros_like(places), places)
            beliefs = beliefs * shadow.wanted(self.denoiser.mask_token_id)
            view = replace(view, hindsight=shadow.onto(beliefs, view.columns))
        self._take(view, self.options.way.choose(view, self.options))
        self.n_steps += 1

    def fill_next(self, block: Block) -> None:
        """Fills the token after a finished block, and the text after it, if it is predicted and is a mask."""
        column = torch.tensor([block.end])
        is_mask = torch.zeros_like(self.tokens, dtype=torch.bool)
        if not self.structure.fills_next or self.slot_number[0, block.end] < 0:
            return
        is_mask[0, block.end] = True
        logits = self._logits(block, None, is_finished=True)[[block.end - 1]]
        drawn_as = self.slot_number[0, column - 1]  # it is drawn with the random number of the slot before it
        view = self._view(logits, column, is_mask, ~is_mask & is_mask, Step(1), 0, torch.tensor(0), drawn_as)
        self._take(view, self.options.way.choose(view, self.options))

    def ends_with(self, number: int) -> bool:
        """Whether an end of text in a finished block ends the answer, as in samplers of blocks."""
        has_blocks = self.structure.is_causal or self.options.append_blocks or self.options.way.ends_at_eos
        has_blocks &= not self.needs.later_blocks
        written = self.tokens[self.block_of == number].tolist()
        return has_blocks and not set(self.proposer.end_ids).isdisjoint(written)

    def _logits(self, block: Block, shadow: Shadow | None, *, is_finished: bool = False) -> Tensor:
        """The model's outputs [W, V] at all columns that the block sees, followed by those of the shadow."""
        attention, n_prompt = self.structure.attention, self.canvas.prompt_length
        is_cut = (self.structure.is_causal or self.options.append_blocks) and not self.needs.later_blocks
        stop = block.end if is_finished else block.stop
        columns = torch.arange(stop if is_cut else self.tokens.shape[1] - 1)[None]
        tokens = self.tokens[:, : columns.shape[1]]
        if shadow is not None:
            is_real = torch.ones_like(columns, dtype=torch.bool)
            return shadow.logits(self.denoiser, columns, tokens, is_real, None)
        order = attention.block_of(columns, n_prompt)
        if attention.causal_context:
            order = columns if is_finished else columns.masked_fill(columns >= block.start, columns.shape[1])
        sees = order[:, None, :] <= order[:, :, None]  # [1, W, W]
        prompt = (columns < n_prompt) & (self.slot_number[:, : columns.shape[1]] < 0)
        return self.denoiser.window_logits(
            tokens, columns, sees, None, cfg_scale=self.options.cfg_scale, prompt_mask=prompt
        )

    def _view(
        self,
        logits: Tensor,
        columns: Tensor,
        masks: Tensor,
        filled: Tensor,
        step: Step,
        at: int,
        n_before: Tensor,
        drawn_as: Tensor | None = None,
    ) -> View:
        """The sampler's view of a pass over the whole canvas, with `logits` [N, V] at `columns` [N]."""
        slots = self.slot_number[0, columns] if drawn_as is None else drawn_as
        seed, steps = torch.tensor(self.canvas.seed), torch.tensor(self.n_steps)
        where = WhereMasked(slots, slots - n_before, self.order[0, columns], uniform_numbers(seed, steps, slots))
        proposals = self.proposer.propose(logits.clone(), where)

        def on_canvas(values: Tensor) -> Tensor:  # [N] -> [1, T]
            return values.new_zeros(1, self.tokens.shape[1]).index_copy(1, columns, values[None])

        every = torch.arange(self.tokens.shape[1])[None]
        divergence: Any = None
        if self.history is not None:
            banned = logits.float().index_fill(1, torch.tensor(sorted(self.proposer.banned_ids)), -torch.inf)
            changes = self.history.add(banned, torch.zeros_like(columns), slots)
            divergence = self.history.divergences(on_canvas(changes), every)
        return View(
            columns=every,
            tokens=self.tokens,
            masks=masks,
            filled=filled,
            proposed=on_canvas(proposals.tokens),
            confidence=on_canvas(proposals.confidence),
            priority=on_canvas(proposals.priority),
            entropy=on_canvas(proposals.entropy),
            fill=torch.tensor([step.fill]),
            back=torch.tensor([step.back]),
            step=torch.tensor([at]),
            strict=self.structure.is_strict,
            divergence=divergence,
            answer=self._answer(on_canvas(proposals.tokens)),
            state=self.state,
        )

    def _answer(self, proposed: Tensor) -> Answer:
        is_slot, ends = self.slot_number >= 0, torch.tensor([*self.proposer.end_ids])
        return Answer(
            slots=self.slot_number,
            blocks=self.block_of,
            masks=is_slot & (self.tokens == self.denoiser.mask_token_id),
            ends=is_slot & torch.isin(self.tokens, ends),
            would_end=torch.isin(proposed, ends),
        )

    def _take(self, view: View, choice: Choice) -> None:
        """Keeps the tokens and the sampler's state after a pass."""
        self.tokens = choice.tokens_after(view, self.denoiser.mask_token_id)
        self.state = dict(choice.state) or self.state
