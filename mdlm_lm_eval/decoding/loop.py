"""Reverse diffusion in which every step sees the whole canvas: exact, for models with full attention."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.completion import Completion, Cost, ReturnedSlots
from mdlm_lm_eval.decoding.proposals import propose
from mdlm_lm_eval.decoding.rules import unmasking_rule
from mdlm_lm_eval.decoding.schedules import unmask_counts
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.options import DecodingOptions

# On an accelerator, asking which rows are decided waits for the device.
_STEPS_BETWEEN_LOOKS = 4


class CanvasBatch:
    """Tensors of the rows that are still being decoded."""

    def __init__(self, denoiser: Denoiser, canvases: Sequence[Canvas], options: DecodingOptions) -> None:
        device = denoiser.device
        self.canvases = list(canvases)
        self.indices = list(range(len(canvases)))  # of the rows, in the order that the caller knows
        rows = pad_sequence([torch.tensor(canvas.token_ids) for canvas in canvases], True, denoiser.pad_token_id)
        attended = pad_sequence([torch.ones(len(canvas.token_ids), dtype=torch.long) for canvas in canvases], True)
        self.input_ids, self.attention_mask = rows.to(device), attended.to(device)  # [B, T]
        self.generators = [torch.Generator().manual_seed(canvas.seed) for canvas in canvases]
        slot_number = torch.full(self.input_ids.shape, -1)  # [B, T]
        block_number = torch.full(self.input_ids.shape, -1)  # [B, T]
        random_numbers = torch.zeros(self.input_ids.shape)  # [B, T]
        prompt = torch.zeros(self.input_ids.shape, dtype=torch.bool)  # [B, T]
        for row, canvas in enumerate(canvases):
            slots = torch.tensor(canvas.slots)
            slot_number[row, slots] = torch.arange(len(slots))
            lengths = torch.tensor(canvas.block_lengths)
            block_number[row, slots] = torch.arange(len(lengths)).repeat_interleave(lengths)
            if unmasking_rule(options.unmasking).is_random:
                random_numbers[row, slots] = torch.rand(len(slots), generator=self.generators[row])
            prompt[row, : canvas.prompt_length] = True
            prompt[row, slots] = False
        self.slot_number, self.block_number = slot_number.to(device), block_number.to(device)
        self.random_numbers, self.prompt = random_numbers.to(device), prompt.to(device)
        self.finite = torch.ones(len(canvases), dtype=torch.bool, device=device)  # [B], logits so far
        self.plans = [_plan(canvas, options) for canvas in canvases]
        longest = max(map(len, self.plans))
        padded_plans = [plan + [(0, 0)] * (longest - len(plan)) for plan in self.plans]
        # Of every row and step: tokens to unmask, and masks to choose among.
        self.counts, self.n_candidates = torch.tensor(padded_plans).to(device).unbind(-1)  # [B, S] each

    def keep(self, rows: list[int]) -> None:
        """Drops all other rows, and the columns that then hold padding alone."""
        length = max((len(self.canvases[row].token_ids) for row in rows), default=0)
        chosen = torch.tensor(rows, dtype=torch.long, device=self.input_ids.device)
        for name in ("input_ids", "attention_mask", "slot_number", "block_number", "random_numbers", "prompt"):
            setattr(self, name, getattr(self, name)[chosen, :length])
        for name in ("counts", "n_candidates", "finite"):
            setattr(self, name, getattr(self, name)[chosen])
        for name in ("canvases", "indices", "generators", "plans"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in rows])

    def uniform(self, temperature: float) -> Tensor:
        """One number in [0, 1) for every slot, from the rows' own generators, [B, T]; zeros where nothing is drawn."""
        # Only from pinned memory is a copy to a GPU not waited for.
        numbers = torch.zeros(self.input_ids.shape, pin_memory=self.input_ids.device.type == "cuda")
        if temperature > 0.0:
            for row, canvas in enumerate(self.canvases):
                numbers[row, canvas.slots] = torch.rand(len(canvas.slots), generator=self.generators[row])
        return numbers.to(self.input_ids.device, non_blocking=True)

    def check_finite(self) -> None:
        """Raises NonFiniteLogitsError where logits of a step so far were not finite."""
        for row, finite in enumerate(self.finite.tolist()):
            if not finite:
                raise NonFiniteLogitsError(self.indices[row])

    def returned(self, mask_token_id: int) -> list[ReturnedSlots]:
        """What comes back for each row, so far."""
        ids = self.input_ids.tolist()
        return [
            ReturnedSlots([row[slot] for slot in canvas.slots[: canvas.n_returned]], mask_token_id)
            for row, canvas in zip(ids, self.canvases, strict=True)
        ]


def decode_whole(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    *,
    banned_ids: Collection[int],
    end_ids: Collection[int],
    is_decided: Callable[[list[int]], bool] | None,
    advance: Callable[[int], object],
) -> list[Completion]:
    """Decodes a batch whose every step sees the whole canvas; see `decode_canvases`."""
    batch = CanvasBatch(denoiser, canvases, options)
    completions: dict[int, Completion] = {}
    canvases_per_row = 2 if options.cfg_scale > 0.0 else 1
    look_every = 1 if denoiser.device.type == "cpu" else _STEPS_BETWEEN_LOOKS
    step = 0
    while batch.indices:
        _denoise(denoiser, batch, options, step, banned_ids, end_ids)
        step += 1
        advance(len(batch.indices))
        finished = [len(plan) <= step for plan in batch.plans]
        look = options.early_exit and step % look_every == 0
        if options.is_parallel:
            complete = (~((batch.input_ids == denoiser.mask_token_id) & (batch.slot_number >= 0)).any(1)).tolist()
            finished = [ended or done for ended, done in zip(finished, complete, strict=True)]
        if not look and not any(finished):
            continue
        batch.check_finite()
        kept = []
        for row, returned in enumerate(batch.returned(denoiser.mask_token_id)):
            if finished[row] or (options.early_exit and returned.is_decided(end_ids, is_decided)):
                length = canvases_per_row * len(batch.canvases[row].token_ids)
                cost = Cost(forward_passes=step, steps=step, tokens=step * length)
                completions[batch.indices[row]] = returned.completion(end_ids, cost)
            else:
                kept.append(row)
        if len(kept) < len(batch.indices):
            batch.keep(kept)
    return [completions[row] for row in range(len(canvases))]


def _plan(canvas: Canvas, options: DecodingOptions) -> list[tuple[int, int]]:
    """For every denoising step of a canvas: how many tokens it unmasks, and how many masks it chooses among.

    Steps that would unmask nothing (Dream's schedule has some) change nothing and are left out, and with `early_exit`
    so are blocks whose tokens are not returned, since later blocks never change earlier ones. Under
    a parallel rule a row may be ahead of its plan, never behind: the number of masks is known only from above.
    """
    plan: list[tuple[int, int]] = []
    start = 0
    for length, steps in zip(canvas.block_lengths, canvas.block_steps, strict=True):
        if options.early_exit and start >= canvas.n_returned:
            break
        if options.is_parallel:
            plan += [(1, length)] * steps
        elif steps == 1 and options.early_exit:
            # All of the block at once: what is not returned need not be predicted.
            returned = min(length, canvas.n_returned - start)
            plan.append((returned, returned))
        else:
            left = length
            for count in filter(None, unmask_counts(length, steps, options.schedule)):
                plan.append((count, left))
                left -= count
        start += length
    return plan


def _denoise(
    denoiser: Denoiser,
    batch: CanvasBatch,
    options: DecodingOptions,
    step: int,
    banned_ids: Collection[int],
    end_ids: Collection[int],
) -> None:
    """One denoising step: a forward pass, then the rows' highest-ranked masks of their current block are filled."""
    masked = (batch.input_ids == denoiser.mask_token_id) & (batch.slot_number >= 0)  # [B, T]
    block = batch.block_number.masked_fill(~masked, torch.iinfo(torch.long).max).amin(1, keepdim=True)  # [B, 1]
    candidates = masked & (batch.block_number == block)  # [B, T]
    candidates &= candidates.cumsum(1) <= batch.n_candidates[:, step, None]
    flat = candidates.flatten()
    if not options.is_parallel:
        # The number of candidates is known from the plan: the device need not be asked for it.
        at = torch.nonzero_static(flat, size=sum(plan[step][1] for plan in batch.plans)).squeeze(1)  # [N]
    else:
        at = torch.nonzero(flat).squeeze(1)  # [N]

    logits = denoiser.logits(
        batch.input_ids,
        batch.attention_mask if len({len(canvas.token_ids) for canvas in batch.canvases}) > 1 else None,
        at,
        cfg_scale=options.cfg_scale,
        prompt_mask=batch.prompt,
    )  # [N, V]
    proposals = propose(
        logits,
        options,
        banned_ids=banned_ids,
        end_ids=end_ids,
        uniform=batch.uniform(options.temperature).flatten()[at],
        slot_numbers=batch.slot_number.flatten()[at],
        random_numbers=batch.random_numbers.flatten()[at],
    )

    def spread(values: Tensor) -> Tensor:  # [N] -> [B, T]
        return values.new_zeros(batch.input_ids.numel()).scatter(0, at, values).view(batch.input_ids.shape)

    confidence = spread(proposals.confidence)
    batch.finite &= confidence.isfinite().all(1)
    chosen = select(
        candidates,
        spread(proposals.priority),
        confidence,
        spread(proposals.entropy),
        batch.counts[:, step],
        options,
        strict=False,
    )
    batch.input_ids = torch.where(chosen, spread(proposals.tokens), batch.input_ids)
