"""Decoding that inserts and deletes tokens (LLaDA2.2), block by block; a block grows and shrinks at its right end.

A pass fills masks by schedule and threshold and changes tokens, as LLaDA2.1's does. Where it writes DELETE the position
goes; SPLIT becomes a mask in front of the token that was there. Such masks are filled beside the schedule. After the
design notes of the release and a port of its modelling file; the file itself was not at hand.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.completion import Completion, Cost
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.options import DecodingOptions

_DEFAULT_STEPS, _DEFAULT_POST_STEPS, _REDRAWS = 32, 16, 5


@dataclass
class Block:
    """A block that is decoded: its tokens, which of them are prompt, and which masks stood there from the start."""

    tokens: list[int]
    is_prompt: list[bool]
    is_original: list[bool]
    step: int = 0
    post: int = 0
    is_done: bool = False
    seen: set[tuple[int, ...]] = field(default_factory=set)
    n_masks: int = 0  # as it began

    @classmethod
    def of(cls, tokens: Sequence[int], mask: int) -> "Block":
        """As it is on the canvas."""
        is_mask = [token == mask for token in tokens]
        return cls(list(tokens), [not each for each in is_mask], is_mask, n_masks=sum(is_mask))


class Editor:
    """What a pass makes of a block; `banned_ids` are never written."""

    def __init__(self, denoiser: Denoiser, options: DecodingOptions, banned_ids: Collection[int]) -> None:
        config = denoiser.model.config
        self.mask, self.options, self.banned_ids = denoiser.mask_token_id, options, sorted(banned_ids)
        self.delete, self.split = config.delete_token_id, config.split_token_id
        self.most_post = _DEFAULT_POST_STEPS if options.max_post_steps is None else options.max_post_steps

    def is_over(self, block: Block) -> bool:
        """Before a pass, whether the block needs none."""
        masks = [i for i, token in enumerate(block.tokens) if token == self.mask]
        block.post = 0 if any(block.is_original[i] for i in masks) else block.post + 1
        return block.n_masks == 0 or (not masks and block.post > self.most_post)

    def edit(self, block: Block, logits: Tensor, random: Random) -> bool:
        """One pass, with `logits` [B, V]; whether the block is done."""
        options, before = self.options, list(block.tokens)
        logits[:, self.banned_ids] = -torch.inf
        confidence, proposed = (values.tolist() for values in logits.softmax(-1).max(-1))
        masks = [i for i, token in enumerate(before) if token == self.mask]
        most = options.max_steps_per_block
        is_final = block.post >= max(1, self.most_post) or block.step == most - 1
        originals = {i for i in masks if block.is_original[i]}
        chosen = set(masks)
        steps = options.steps_per_block or _DEFAULT_STEPS
        if not is_final and block.step < steps:
            need = block.n_masks // steps + (block.step < block.n_masks % steps) + len(masks) - len(originals)
            threshold = options.confidence_threshold
            sure = [i for i in masks if threshold is not None and confidence[i] > threshold]
            chosen = set(sure if len(sure) >= need else sorted(masks, key=lambda i: -confidence[i])[:need])
        if self.most_post == 0 and originals and originals <= chosen:  # no pass follows that could edit
            is_final, chosen = True, set(masks)
        if (threshold := options.editing_threshold) is not None:
            chosen |= {
                i
                for i, token in enumerate(before)
                if not (token == self.mask or block.is_prompt[i]) and confidence[i] > threshold and proposed[i] != token
            }
        if is_final:
            logits[:, [self.delete, self.split]] = -torch.inf
            proposed = logits.argmax(-1).tolist()
        written = [proposed[i] if i in chosen else token for i, token in enumerate(before)]
        for _ in range(0 if is_final else _REDRAWS):  # a block that was written before would come again and again
            changed = [i for i in range(len(before)) if written[i] != before[i]]
            if not changed or tuple(written) not in block.seen:
                break
            place = random.choice(changed)
            logits[place, written[place]] = -torch.inf
            written[place] = int(logits[place].argmax())
        block.seen.add(tuple(written))
        block.step += 1
        self._rebuild(block, before, written)
        return block.tokens == before and self.mask not in before

    def _rebuild(self, block: Block, before: Sequence[int], written: Sequence[int]) -> None:
        """The block as written, with DELETE and SPLIT carried out, cut or filled up on the right."""
        new: list[tuple[int, bool, bool]] = []
        for i, token in enumerate(written):
            flags = (block.is_prompt[i], block.is_original[i])
            if block.is_prompt[i] or token not in (self.delete, self.split):
                new.append((token, *flags))
            elif token == self.split:
                new += [(self.mask, False, False), (before[i], *flags)]
        new = (new + [(self.mask, False, False)] * len(written))[: len(written)]
        block.tokens, block.is_prompt, block.is_original = (list(values) for values in zip(*new, strict=True))


class Windows:
    """Passes over windows of a batch of canvases, which see the blocks before them and themselves."""

    def __init__(self, denoiser: Denoiser, canvases: Sequence[Canvas], length: int) -> None:
        self.denoiser, self.length = denoiser, length
        self.costs = [Cost()] * len(canvases)
        longest = max(len(canvas.token_ids) for canvas in canvases)
        self.width = -(-longest // length) * length  # the last column is no row's, and begins a block
        self.cache = CanvasCache(denoiser.model.config.num_hidden_layers, self.width + 1, len(canvases))

    def run(self, rows: Sequence[int], windows: Sequence[Sequence[int]], begins: Sequence[int]) -> Tensor:
        """Logits [R, W, V] of windows that begin at columns `begins` of `rows`, remembered as they are."""
        longest, pad, device = max(map(len, windows)), self.denoiser.pad_token_id, self.denoiser.device
        ids = torch.tensor([[*window, *[pad] * (longest - len(window))] for window in windows])
        ends = torch.tensor([begin + len(window) for begin, window in zip(begins, windows, strict=True)])[:, None]
        columns = torch.tensor(begins)[:, None] + torch.arange(longest)
        columns = columns.where(columns < ends, self.width)
        sees = torch.arange(self.width + 1) // self.length <= (columns // self.length)[..., None]  # [R, W, K]
        row = torch.arange(len(rows)).repeat_interleave(longest)
        logits = self.denoiser.window_logits(
            *(values.to(device) for values in (ids, columns, sees, row, torch.arange(longest).repeat(len(rows)))),
            cache=self.cache,
            cache_rows=torch.tensor(rows).to(device),
            n_seen=self.width + 1,
        )
        for row_index, window in zip(rows, windows, strict=True):
            cost = self.costs[row_index]
            self.costs[row_index] = Cost(cost.forward_passes + 1, cost.steps, cost.tokens + len(window))
        return logits.float().view(len(rows), longest, -1)


def decode_with_insertions(
    denoiser: Denoiser,
    canvases: Sequence[Canvas],
    options: DecodingOptions,
    attention: AttentionPattern,
    *,
    banned_ids: Collection[int],
    end_ids: Collection[int],
    is_decided: Callable[[list[int]], bool] | None,
    finished: Callable[[int, Completion], object],
    batch_size: int,
) -> list[Completion]:
    """As `decode_canvases`; a batch ends with its last row. Ends and early exit wait for the end of a block."""
    editor, length = Editor(denoiser, options, banned_ids), attention.block_length or 1
    asks = is_decided if options.early_exit else None
    completions: list[Completion] = []
    for first in range(0, len(canvases), batch_size):
        batch = canvases[first : first + batch_size]
        passes = Windows(denoiser, batch, length)
        texts = [list(canvas.token_ids) for canvas in batch]
        starts = [canvas.prompt_length // length * length for canvas in batch]
        if with_prompt := [n for n, start in enumerate(starts) if start]:
            passes.run(with_prompt, [texts[n][: starts[n]] for n in with_prompt], [0] * len(with_prompt))
        blocks = [
            Block.of(text[start : start + length], denoiser.mask_token_id)
            for text, start in zip(texts, starts, strict=True)
        ]
        randoms = [Random(canvas.seed) for canvas in batch]
        going = list(range(len(batch)))
        done: dict[int, Completion] = {}
        while going:
            for n in list(going):
                block, canvas = blocks[n], batch[n]
                block.is_done = block.is_done or editor.is_over(block)
                if not block.is_done:
                    continue
                stop = starts[n] + length
                texts[n][starts[n] : stop] = block.tokens
                written = texts[n][canvas.prompt_length :][: min(stop - canvas.prompt_length, canvas.n_returned)]
                ends = [at for at, token in enumerate(written, start=1) if token in end_ids]
                is_last = len(written) == canvas.n_returned or stop >= len(texts[n])
                if ends or is_last or (asks is not None and asks(written)):
                    done[n] = Completion(written[: ends[0]] if ends else written, passes.costs[n], len(written))
                    finished(first + n, done[n])
                    going.remove(n)
            if not going:
                break
            logits = passes.run(going, [blocks[n].tokens for n in going], [starts[n] for n in going])
            for n, of_row in zip(going, logits, strict=True):
                if blocks[n].is_done:  # its final tokens are remembered now
                    starts[n] += length
                    blocks[n] = Block.of(texts[n][starts[n] : starts[n] + length], denoiser.mask_token_id)
                    continue
                if not bool(of_row.isfinite().all()):
                    raise NonFiniteLogitsError(first + n)
                cost = passes.costs[n]
                passes.costs[n] = Cost(cost.forward_passes, cost.steps + 1, cost.tokens)
                blocks[n].is_done = editor.edit(blocks[n], of_row, randoms[n])
        completions += [done[n] for n in range(len(batch))]
    return completions
