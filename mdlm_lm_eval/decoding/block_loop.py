"""Reverse diffusion over blocks of a batch of canvases, with what was computed for the rest of them remembered."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.blocks import Block, cached_blocks, causal_blocks
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.completion import Completion
from mdlm_lm_eval.decoding.progress import CanvasProgress, Phase
from mdlm_lm_eval.decoding.proposals import Proposals, propose
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions


class BlockDecoder:
    """Rows of a batch that are decoded block by block.

    A pass runs one window of each row. What that is, and what is remembered, is said by `CausalDecoder` (exact, for
    block-causal models) and `ApproximateDecoder` (Fast-dLLM's caches, for all others):

    blocks_of: the blocks of a canvas, in the order in which they are decoded.
    window: first column of a row's next pass, and the one behind its last.
    wanted: columns whose tokens a row's next pass predicts.
    needs_storing: whether a finished block has to be run once more before the next one.
    finish: goes on to a row's next block; `next_token` is what a shifted model predicts behind the finished one.
    """

    blocks_of: Callable[[Canvas], tuple[Block, ...]]
    window: Callable[[CanvasProgress], tuple[int, int]]
    wanted: Callable[[CanvasProgress], list[int]]
    needs_storing: Callable[[CanvasProgress], bool]
    finish: Callable[[CanvasProgress, int | None], None]

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
            CanvasProgress(index, canvas, self.blocks_of(canvas), options, denoiser.mask_token_id)
            for index, canvas in enumerate(canvases)
        ]
        # The last column is no row's: what a window holds beyond its row's is written there, and seen by nobody.
        width = max(len(canvas.token_ids) for canvas in canvases) + 1
        device = denoiser.device
        self.cache: CanvasCache | None = None
        if options.cache != "none":
            self.cache = CanvasCache(denoiser.model.config.num_hidden_layers, width)
        columns = torch.arange(width)[None]  # [1, width]
        lengths = torch.tensor([[len(canvas.token_ids)] for canvas in canvases])
        prompts = torch.tensor([[canvas.prompt_length] for canvas in canvases])
        self.block_of = attention.block_of(columns, prompts).expand(len(canvases), -1).to(device)  # [R, width]
        self.real = (columns < lengths).to(device)  # [R, width]
        prompt = columns < prompts
        for row, canvas in enumerate(canvases):
            prompt[row, list(canvas.slots)] = False
        self.prompt = prompt.to(device)  # [R, width]
        # Of a shifted model, the logits [V] of the token behind each row's finished block.
        self.logits_behind: list[Tensor | None] = [None] * len(canvases)

    def waits(self, row: CanvasProgress) -> bool:
        """Whether a row takes no part in the next pass."""
        return False

    def keep(self, kept: list[int]) -> None:
        """Drops all other rows."""
        rows = torch.tensor(kept, dtype=torch.long, device=self.block_of.device)
        if self.cache is not None:
            guided = torch.cat([rows, rows + len(self.rows)])
            self.cache.keep(guided if self.options.cfg_scale > 0.0 else rows)
        self.block_of, self.real, self.prompt = self.block_of[rows], self.real[rows], self.prompt[rows]
        self.rows = [self.rows[n] for n in kept]
        self.logits_behind = [self.logits_behind[n] for n in kept]

    def run_pass(self) -> None:
        """One pass of the model, and what follows from it for every row."""
        waiting = [self.waits(row) for row in self.rows]
        windows = [self.window(row) for row in self.rows]
        columns = [[] if waits else self.wanted(row) for row, waits in zip(self.rows, waiting, strict=True)]
        logits = self._logits(windows, columns)
        behind = logits.clone() if self.denoiser.shift else logits  # proposing overwrites logits
        proposals = self._propose(logits, columns)
        canvases_per_row = 2 if self.options.cfg_scale > 0.0 else 1
        for row, waits, (start, stop) in zip(self.rows, waiting, windows, strict=True):
            if not waits:
                row.cost = row.cost.plus(canvases_per_row * (stop - start), step=row.phase is not Phase.STORE)
        self._advance(proposals, columns, behind, waiting)

    def _logits(self, windows: list[tuple[int, int]], wanted: list[list[int]]) -> Tensor:
        """Logits [N, V] of the tokens at the `wanted` columns of each row, from a pass over the rows' windows."""
        device = self.block_of.device
        starts, stops = torch.tensor(windows).unbind(1)  # [R] each
        width = int((stops - starts).max())
        n_seen = int(stops.max()) if self.attention.is_block_causal else self.real.shape[1] - 1
        columns = starts[:, None] + torch.arange(width)  # [R, W]
        columns = columns.masked_fill(columns >= stops[:, None], self.real.shape[1] - 1).to(device)
        pad = self.denoiser.pad_token_id
        tokens = [row.token_ids[start:stop] for row, (start, stop) in zip(self.rows, windows, strict=True)]
        input_ids = torch.tensor([window + [pad] * (width - len(window)) for window in tokens]).to(device)  # [R, W]
        sees = self.block_of[:, None, :n_seen] <= self.block_of.gather(1, columns)[:, :, None]  # [R, W, n_seen]
        rows = torch.repeat_interleave(torch.arange(len(wanted)), torch.tensor([len(of_row) for of_row in wanted]))
        offsets = torch.tensor([column for of_row in wanted for column in of_row], dtype=torch.long) - starts[rows]
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
        if self.denoiser.shift:
            for n in (offsets == 0).nonzero().flatten().tolist():  # nothing on their left is in the window
                remembered = self.logits_behind[int(rows[n])]
                if remembered is not None:
                    logits[n] = remembered
        return logits

    def _propose(self, logits: Tensor, wanted: list[list[int]]) -> Proposals:
        numbers: list[int] = []
        random_numbers: list[float] = []
        uniform = [torch.empty(0)]
        for row, columns in zip(self.rows, wanted, strict=True):
            of_row = [row.slot_numbers.get(column, 0) for column in columns]
            numbers += of_row
            random_numbers += [row.random_numbers[number] for number in of_row]
            if self.options.temperature > 0.0:
                uniform.append(torch.rand(len(columns), generator=row.generator))
            else:
                uniform.append(torch.zeros(len(columns)))
        return propose(
            logits,
            self.options,
            banned_ids=self.banned_ids,
            end_ids=self.end_ids,
            uniform=torch.cat(uniform).to(logits.device),
            slot_numbers=torch.tensor(numbers, dtype=torch.long).to(logits.device),
            random_numbers=torch.tensor(random_numbers).to(logits.device),
        )

    def _advance(self, proposals: Proposals, wanted: list[list[int]], behind: Tensor, waiting: list[bool]) -> None:
        """Fills, edits and goes on to the next block, each row as its phase says."""
        sizes = torch.tensor([len(columns) for columns in wanted])
        there = torch.arange(max(1, int(sizes.max())))[None] < sizes[:, None]  # [R, C]

        def spread(values: Tensor) -> Tensor:  # [N] -> [R, C]
            return torch.zeros(there.shape, dtype=values.dtype).masked_scatter(there, values.cpu())

        confidence = spread(proposals.confidence)
        if not bool(confidence.isfinite().all()):
            raise NonFiniteLogitsError(self.rows[int((~confidence.isfinite()).any(1).nonzero()[0])].index)
        candidates = there.clone()
        for n, (row, columns) in enumerate(zip(self.rows, wanted, strict=True)):
            may_fill = set(row.candidates()) if row.phase is Phase.FILL else set()
            candidates[n, : len(columns)] = torch.tensor([column in may_fill for column in columns], dtype=torch.bool)
        chosen = select(
            candidates,
            spread(proposals.priority),
            confidence,
            spread(proposals.entropy),
            torch.tensor([row.count() for row in self.rows]),
            self.options,
            strict=self.attention.is_block_causal,
        ).tolist()
        tokens, sure = spread(proposals.tokens).tolist(), confidence.tolist()
        first = (sizes.cumsum(0) - sizes).tolist()  # of each row, among the N
        for n, (row, columns) in enumerate(zip(self.rows, wanted, strict=True)):
            if waiting[n]:
                continue
            if row.phase is Phase.STORE:
                self.logits_behind[n] = behind[first[n]] if columns else None
                self.finish(row, tokens[n][0] if columns else None)
                continue
            filled = {column: tokens[n][c] for c, column in enumerate(columns) if chosen[n][c]}
            row.fill(filled, row.edits(columns, tokens[n], sure[n]))


class CausalDecoder(BlockDecoder):
    """Block-causal models: a finished block never sees what follows it, so that remembering it changes nothing.

    A pass runs each row's current block, at its own place. When the block is finished it is run once more, so that the
    keys and values of its final tokens are remembered. With `cache=none` a pass runs the canvas up to the block's end.
    """

    def blocks_of(self, canvas: Canvas) -> tuple[Block, ...]:
        """What stands before the first slot's block, as one block without slots, and the blocks with slots."""
        return causal_blocks(canvas, self.attention, self.options)

    def window(self, row: CanvasProgress) -> tuple[int, int]:
        """The current block."""
        return (0 if self.cache is None else row.block.start), row.block.stop

    def wanted(self, row: CanvasProgress) -> list[int]:
        """What may be filled or edited; of a finished block, the token behind it if the model's logits are shifted."""
        if row.phase is Phase.STORE:
            return [row.block.stop] if self.denoiser.shift else []
        return sorted((*row.candidates(), *row.editable()))

    def needs_storing(self, row: CanvasProgress) -> bool:
        """Unless nothing is remembered, or the last pass saw the block as it stays."""
        return self.denoiser.shift or (self.cache is not None and not row.is_stored)

    def finish(self, row: CanvasProgress, next_token: int | None) -> None:
        """A shifted model whose blocks are counted from the row's start (Fast-dLLM v2) writes the next block's first
        token now, which it never sees masked; one whose blocks are counted from the prompt's end (A2D) fills it as all
        others.
        """
        row.next_block(next_token if self.attention.blocks_from == "row_start" else None)


class ApproximateDecoder(BlockDecoder):
    """`cache=prefix|dual`: Fast-dLLM's approximate caches for models with full attention (arXiv 2505.22618).

    The first pass of a block runs the whole canvas. The others run the block and all behind it (`prefix`), or the block
    alone (`dual`), against what the first pass computed for the rest: the block's new tokens do not reach it. Rows
    begin a block together, as that pass is wider, and fill it at their own pace.
    """

    def blocks_of(self, canvas: Canvas) -> tuple[Block, ...]:
        """The semi-autoregressive blocks."""
        return cached_blocks(canvas, self.options, first_alone=self.denoiser.shift)

    def window(self, row: CanvasProgress) -> tuple[int, int]:
        """The whole canvas if the block begins now."""
        length = len(row.token_ids)
        if row.step == 0 and not self.waits(row):
            return 0, length
        return row.block.start, length if self.options.cache == "prefix" else row.block.stop

    def wanted(self, row: CanvasProgress) -> list[int]:
        """The block's masks; of a shifted model (Dream) only the first one in the first pass.

        Its logits stand at the column before the block, which no later window holds.
        """
        masked = row.masked()
        return masked[:1] if self.denoiser.shift and row.step == 0 else masked

    def waits(self, row: CanvasProgress) -> bool:
        """Until all rows have finished the block before."""
        return row.step == 0 and any(other.step > 0 for other in self.rows)

    def needs_storing(self, row: CanvasProgress) -> bool:
        """Never: the next block's first pass computes everything anew."""
        return False

    def finish(self, row: CanvasProgress, next_token: int | None) -> None:
        """Not called, as nothing is stored."""
        row.next_block()


def decode_blocks(
    decoder: BlockDecoder,
    *,
    is_decided: Callable[[list[int]], bool] | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> list[Completion]:
    """Decodes all rows; what `decode_canvases` says of stop tokens, early exit, progress and errors holds here.

    A model that edits may change a token until the token's block is done: early exit waits for that.
    """
    n_rows, end_ids, options = len(decoder.rows), decoder.end_ids, decoder.options
    completions: dict[int, Completion] = {}
    while decoder.rows:
        kept = []
        for n, row in enumerate(decoder.rows):
            while row.phase is Phase.STORE and not row.is_over(end_ids) and not decoder.needs_storing(row):
                row.next_block()
            returned = row.returned()
            is_final = row.phase is Phase.STORE or options.editing_threshold is None
            if row.is_over(end_ids) or (options.early_exit and is_final and returned.is_decided(end_ids, is_decided)):
                completions[row.index] = returned.completion(end_ids, row.cost)
            else:
                kept.append(n)
        if len(kept) < len(decoder.rows):
            decoder.keep(kept)
        if decoder.rows:
            steps = sum(row.cost.steps for row in decoder.rows)
            decoder.run_pass()
            advance(sum(row.cost.steps for row in decoder.rows) - steps)
    return [completions[index] for index in range(n_rows)]
