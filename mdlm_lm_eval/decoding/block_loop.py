"""Reverse diffusion over blocks of a batch of canvases, with what was computed for the rest of them remembered."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.canvas import Canvas
from mdlm_lm_eval.canvas_cache import CanvasCache
from mdlm_lm_eval.decoding.blocks import causal_blocks
from mdlm_lm_eval.decoding.completion import Completion
from mdlm_lm_eval.decoding.progress import CanvasProgress, Phase
from mdlm_lm_eval.decoding.proposals import Proposals, propose
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.families.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions


class BlockDecoder:
    """Rows of a batch that are decoded block by block, each at its own pace.

    Every pass runs one window of each row: its current block, whose masks it fills, or, when the block is finished,
    the same once more, so that the keys and values of its final tokens are remembered. Without a cache the window is
    the canvas up to the block's end, and nothing is run once more.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        canvases: Sequence[Canvas],
        attention: AttentionPattern,
        options: DecodingOptions,
        banned_ids: Collection[int],
        end_ids: Collection[int],
    ) -> None:
        self.denoiser, self.attention, self.options = denoiser, attention, options
        self.banned_ids, self.end_ids = banned_ids, end_ids
        self.rows = [
            CanvasProgress(index, canvas, causal_blocks(canvas, attention, options), options, denoiser.mask_token_id)
            for index, canvas in enumerate(canvases)
        ]
        # A window may reach beyond a row's last block, as wide as that of its neighbours.
        widest = max(block.stop - block.start for row in self.rows for block in row.blocks)
        width = max(len(canvas.token_ids) for canvas in canvases) + widest
        self.cache: CanvasCache | None = None
        if options.cache != "none":
            self.cache = CanvasCache(denoiser.model.config.num_hidden_layers, width)
        block_of = torch.tensor(
            [[attention.block_of(column, canvas.prompt_length) for column in range(width)] for canvas in canvases]
        )  # [R, width]
        self.block_of = block_of.to(denoiser.device)
        lengths = torch.tensor([[len(canvas.token_ids)] for canvas in canvases])
        self.real = (torch.arange(width)[None] < lengths).to(denoiser.device)  # [R, width]
        prompt = [[c < canvas.prompt_length and c not in canvas.slots for c in range(width)] for canvas in canvases]
        self.prompt = torch.tensor(prompt).to(denoiser.device)  # [R, width]
        # Of a shifted model, the logits [V] of the token behind each row's finished block.
        self.logits_behind: list[Tensor | None] = [None] * len(canvases)

    @property
    def _continues_with_next_token(self) -> bool:
        """Whether a finished block tells the next one's first token (Fast-dLLM v2), which is never a mask then.

        Where blocks are counted from the prompt's end (A2D), it is filled like all others.
        """
        return self.denoiser.shift and self.attention.blocks_from == "row_start"

    def needs_storing(self, row: CanvasProgress) -> bool:
        """Whether a finished block has to be run once more before the next one."""
        return self.denoiser.shift or (self.cache is not None and not row.is_stored)

    def keep(self, kept: list[int]) -> None:
        """Drops all other rows."""
        rows = torch.tensor(kept, dtype=torch.long, device=self.block_of.device)
        if self.cache is not None:
            twice = torch.cat([rows, rows + len(self.rows)]) if self.options.cfg_scale > 0.0 else rows
            self.cache.keep(twice)
        self.block_of, self.real, self.prompt = self.block_of[rows], self.real[rows], self.prompt[rows]
        self.rows = [self.rows[n] for n in kept]
        self.logits_behind = [self.logits_behind[n] for n in kept]

    def run_pass(self) -> None:
        """One pass of the model, and what follows from it for every row."""
        windows = [(0 if self.cache is None else row.block.start, row.block.stop) for row in self.rows]
        width = max(stop - start for start, stop in windows)
        wanted = [self._wanted(row) for row in self.rows]
        sizes = [len(slots) for slots in wanted]
        rows = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))  # [N]
        slots = torch.tensor([slot for of_row in wanted for slot in of_row], dtype=torch.long)  # [N]
        logits = self._logits([start for start, _ in windows], width, rows, slots)
        doubled = 2 if self.options.cfg_scale > 0.0 else 1
        for row, (start, stop) in zip(self.rows, windows, strict=True):
            row.cost = row.cost.plus(doubled * (stop - start), step=row.phase is not Phase.STORE)
        behind = logits.clone() if self.denoiser.shift else logits  # proposing overwrites logits
        proposals = self._propose(logits, wanted)
        self._advance(proposals, wanted, behind)

    def _wanted(self, row: CanvasProgress) -> list[int]:
        """Columns whose tokens a row's next pass predicts."""
        if row.phase is Phase.STORE:
            return [row.block.stop] if self.denoiser.shift else []
        return sorted({*row.candidates(), *row.editable()})

    def _logits(self, starts: list[int], width: int, rows: Tensor, slots: Tensor) -> Tensor:
        """Logits [N, V] of the tokens at `slots` [N] of `rows` [N], from windows of `width` columns from `starts` on."""
        device = self.block_of.device
        n_seen = max(starts) + width
        columns = (torch.tensor(starts)[:, None] + torch.arange(width)).to(device)  # [R, W]
        offsets = slots - torch.tensor(starts)[rows]
        windows = [row.token_ids[start : start + width] for row, start in zip(self.rows, starts, strict=True)]
        pad = self.denoiser.pad_token_id
        input_ids = torch.tensor([window + [pad] * (width - len(window)) for window in windows]).to(device)  # [R, W]
        sees = self.block_of[:, None, :n_seen] <= self.block_of.gather(1, columns)[:, :, None]  # [R, W, n_seen]
        logits = self.denoiser.window_logits(
            input_ids,
            columns,
            sees & self.real[:, None, :n_seen],
            rows.to(device),
            offsets.to(device),
            cache=self.cache,
            cfg_scale=self.options.cfg_scale,
            prompt_mask=self.prompt.gather(1, columns) if self.options.cfg_scale > 0.0 else None,
        )
        if self.denoiser.shift and self.cache is not None:
            for n in (offsets == 0).nonzero().flatten().tolist():  # nothing on their left is in the window
                behind = self.logits_behind[int(rows[n])]
                if behind is not None:
                    logits[n] = behind
        return logits

    def _propose(self, logits: Tensor, wanted: list[list[int]]) -> Proposals:
        device = logits.device
        numbers = [
            row.slot_numbers.get(slot, 0) for row, slots in zip(self.rows, wanted, strict=True) for slot in slots
        ]
        random_numbers = [
            row.random_numbers[row.slot_numbers.get(slot, 0)]
            for row, slots in zip(self.rows, wanted, strict=True)
            for slot in slots
        ]
        uniform = torch.zeros(len(numbers))
        if self.options.temperature > 0.0:
            drawn = [
                torch.rand(len(slots), generator=row.generator) for row, slots in zip(self.rows, wanted, strict=True)
            ]
            uniform = torch.cat(drawn)
        return propose(
            logits,
            self.options,
            banned_ids=self.banned_ids,
            end_ids=self.end_ids,
            uniform=uniform.to(device),
            slot_numbers=torch.tensor(numbers, dtype=torch.long).to(device),
            random_numbers=torch.tensor(random_numbers).to(device),
        )

    def _advance(self, proposals: Proposals, wanted: list[list[int]], behind: Tensor) -> None:
        """Fills, edits and goes on to the next block, each row as its phase says."""
        most = max(1, *map(len, wanted))
        place = torch.full((len(wanted), most), -1)  # [R, C], which of the N proposals
        candidates = torch.zeros(len(wanted), most, dtype=torch.bool)
        start = 0
        for n, (row, slots) in enumerate(zip(self.rows, wanted, strict=True)):
            place[n, : len(slots)] = torch.arange(start, start + len(slots))
            if row.phase is Phase.FILL:
                may_fill = set(row.candidates())
                candidates[n, : len(slots)] = torch.tensor([slot in may_fill for slot in slots])
            start += len(slots)

        def spread(values: Tensor) -> Tensor:  # [N] -> [R, C]
            padded = torch.cat([values.cpu(), values.new_zeros(1).cpu()])
            return padded[place]

        confidence = spread(proposals.confidence)
        for n in (~confidence.isfinite().all(1)).nonzero().flatten().tolist():
            raise NonFiniteLogitsError(self.rows[n].index)
        counts = torch.tensor([row.count() if row.phase is Phase.FILL else 0 for row in self.rows])
        chosen = select(
            candidates,
            spread(proposals.priority),
            confidence,
            spread(proposals.entropy),
            counts,
            self.options,
            strict=True,
        ).tolist()
        tokens, sure = spread(proposals.tokens).tolist(), confidence.tolist()
        for n, (row, slots) in enumerate(zip(self.rows, wanted, strict=True)):
            if row.phase is Phase.STORE:
                self.logits_behind[n] = behind[place[n, 0]] if slots else None
                row.next_block(tokens[n][0] if slots and self._continues_with_next_token else None)
                continue
            filled = {slot: tokens[n][c] for c, slot in enumerate(slots) if chosen[n][c]}
            editable = set(row.editable())
            for c, slot in enumerate(slots):
                if slot in editable and sure[n][c] > self.options.editing_threshold:  # type: ignore[operator]
                    if tokens[n][c] != row.token_ids[slot]:
                        filled[slot] = tokens[n][c]
            row.fill(filled)


def decode_blocks(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    attention: AttentionPattern,
    options: DecodingOptions,
    *,
    banned_ids: Collection[int],
    end_ids: Collection[int],
    is_decided: Callable[[list[int]], bool] | None = None,
) -> list[Completion]:
    """Decodes canvases of a block-causal model; see `decode_canvases`, which calls it."""
    decoder = BlockDecoder(denoiser, canvases, attention, options, banned_ids, end_ids)
    completions: dict[int, Completion] = {}
    while decoder.rows:
        kept = []
        for n, row in enumerate(decoder.rows):
            while not row.is_done and row.phase is Phase.STORE and not _is_over(row, end_ids):
                if decoder.needs_storing(row):
                    break
                row.next_block()
            may_leave = options.early_exit and (row.phase is Phase.STORE or options.editing_threshold is None)
            if row.is_done or _is_over(row, end_ids) or (may_leave and row.is_decided(end_ids, is_decided)):
                completions[row.index] = row.completion(end_ids)
            else:
                kept.append(n)
        if len(kept) < len(decoder.rows):
            decoder.keep(kept)
        if decoder.rows:
            decoder.run_pass()
    return [completions[index] for index in range(len(canvases))]


def _is_over(row: CanvasProgress, end_ids: Collection[int]) -> bool:
    """Whether a row's finished block is its last, or holds an end: all families' samplers stop after such a block."""
    if row.phase is not Phase.STORE or row.is_done:
        return row.is_done
    is_last = row.number == len(row.blocks) - 1
    ends = any(row.token_ids[slot] in end_ids for slot in row.block.slots)
    return (is_last and bool(row.block.slots)) or ends
