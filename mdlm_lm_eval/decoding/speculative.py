"""Left-to-right decoding from drafted blocks (`mode=linear_spec` of Nemotron-Labs-Diffusion).

The tokens are those of `mode=ar`. A block is drafted by denoising it behind the remembered tokens, and then read
causally: what the causal model would have written too is kept, and the first token that differs is replaced by its own.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.completion import Completion, Cost
from mdlm_lm_eval.decoding.selection import select
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions


class Speculation:
    """Rows that are decoded together, and what they have written so far, behind their prompts."""

    def __init__(
        self, denoiser: Denoiser, canvases: Sequence[Canvas], block_length: int, banned_ids: Collection[int]
    ) -> None:
        self.denoiser, self.block_length, self.banned_ids = denoiser, block_length, sorted(banned_ids)
        prompts = [canvas.token_ids[: canvas.prompt_length] for canvas in canvases]
        most = max(canvas.prompt_length + canvas.n_returned for canvas in canvases)
        self.columns = most + block_length + 1  # the last one is no row's
        self.cache = CanvasCache(denoiser.model.config.num_hidden_layers, self.columns, len(canvases))
        self.costs = [Cost()] * len(canvases)
        self.starts = [len(prompt) for prompt in prompts]
        width = max(self.starts)
        pad = denoiser.pad_token_id
        ids = torch.tensor([[*prompt, *[pad] * (width - len(prompt))] for prompt in prompts])
        rows, last = list(range(len(prompts))), torch.tensor(self.starts) - 1
        logits = self._pass(rows, ids, [0] * len(rows), is_causal=True, is_step=False)
        self.answers = [[token] for token in logits.argmax(-1)[torch.arange(len(rows)), last].tolist()]

    def _pass(
        self, rows: Sequence[int], ids: Tensor, starts: Sequence[int], *, is_causal: bool, is_step: bool = True
    ) -> Tensor:
        """Logits [R, W, V] of `ids` [R, W], which begin at column `starts` of `rows`. Raises NonFiniteLogitsError."""
        device, (_, width) = self.denoiser.device, ids.shape
        first = torch.tensor(starts)[:, None]
        columns = (first + torch.arange(width)).clamp(max=self.columns - 1)  # [R, W]
        keys = torch.arange(self.columns)
        sees = keys <= columns[..., None] if is_causal else (keys < first + width)[:, None]  # [R, W or 1, K]
        row = torch.arange(len(rows)).repeat_interleave(width)
        logits = self.denoiser.window_logits(
            ids.to(device),
            columns.to(device),
            sees.to(device),
            row.to(device),
            torch.arange(width).repeat(len(rows)).to(device),
            cache=self.cache,
            cache_rows=torch.tensor(rows).to(device),
            n_seen=self.columns,
        ).view(len(rows), width, -1)
        for n, row_index in enumerate(rows):
            if not bool(logits[n].isfinite().all()):
                raise NonFiniteLogitsError(row_index)
            cost = self.costs[row_index]
            self.costs[row_index] = Cost(cost.forward_passes + 1, cost.steps + is_step, cost.tokens + width)
        logits[..., self.banned_ids] = -torch.inf
        return logits.cpu()

    def draft(self, rows: Sequence[int], options: DecodingOptions) -> Tensor:
        """Blocks [R, B], each behind what its row has written but the last token, with which it begins."""
        mask, starts = self.denoiser.mask_token_id, [self.starts[row] for row in rows]
        blocks = torch.full((len(rows), self.block_length), mask)
        blocks[:, 0] = torch.tensor([self.answers[row][-1] for row in rows])
        while bool((blocks == mask).any()):
            going = (blocks == mask).any(1).nonzero().squeeze(1).tolist()
            logits = self._pass([rows[n] for n in going], blocks[going], [starts[n] for n in going], is_causal=False)
            confidence, tokens = logits.float().softmax(-1).max(-1)
            masked = blocks[going] == mask
            chosen = masked
            if options.confidence_threshold is not None:
                ones = torch.ones(len(going), dtype=torch.long)
                chosen = select(masked, confidence, confidence, confidence, ones, options, strict=False)
            blocks[going] = tokens.where(chosen, blocks[going])
        return blocks

    def verify(self, rows: Sequence[int], blocks: Tensor) -> None:
        """Appends what the causal model writes behind those tokens of `blocks` [R, B] that are its own, too."""
        logits = self._pass(rows, blocks, [self.starts[row] for row in rows], is_causal=True)
        for row, block, written in zip(rows, blocks.tolist(), logits.argmax(-1).tolist(), strict=True):
            n = next((n for n in range(len(block) - 1) if written[n] != block[n + 1]), len(block) - 1)
            self.answers[row] += written[: n + 1]
            self.starts[row] += n + 1


def decode_speculatively(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    block_length: int,
    *,
    banned_ids: Collection[int],
    end_ids: Collection[int],
    is_decided: Callable[[list[int]], bool] | None,
    finished: Callable[[int, Completion], object],
    batch_size: int,
) -> list[Completion]:
    """As `decode_canvases`, by greedy left-to-right decoding; a batch ends with its last row."""
    completions: list[Completion] = []
    for first in range(0, len(canvases), batch_size):
        batch = canvases[first : first + batch_size]
        rows = Speculation(denoiser, batch, block_length, banned_ids)
        going = list(range(len(batch)))
        done: dict[int, Completion] = {}
        while going:
            for row in list(going):
                written = rows.answers[row][: batch[row].n_returned]
                ends = [n for n, token in enumerate(written, start=1) if token in end_ids]
                asks = options.early_exit and is_decided is not None
                if ends or len(written) == batch[row].n_returned or (asks and is_decided and is_decided(written)):
                    answer = written[: ends[0]] if ends else written
                    done[row] = Completion(answer, rows.costs[row], len(written))
                    finished(first + row, done[row])
                    going.remove(row)
            if going:
                rows.verify(going, rows.draft(going, options))
        completions += [done[row] for row in range(len(batch))]
    return completions
