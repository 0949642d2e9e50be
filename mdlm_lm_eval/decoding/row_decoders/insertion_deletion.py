"""Decoding that inserts and deletes tokens (LLaDA2.2), block by block; a block grows and shrinks at its right end.

A pass fills masks by schedule and threshold and changes tokens, as LLaDA2.1's does. If it writes DELETE, the position
is removed; if it writes SPLIT, a mask is inserted in front of the token that was there. Such masks are filled beside
the schedule. This follows the design notes of the release and a port of its modelling file; the file itself was not at
hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.decoding.row_decoders import BatchDecoder, PassByPass
from mdlm_lm_eval.decoding.samplers.editing import EDITING_THRESHOLD, MAX_POST_STEPS
from mdlm_lm_eval.decoding.trace import Event
from mdlm_lm_eval.decoding.way import own_options
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.model.denoiser import Denoiser

_DEFAULT_STEPS, _DEFAULT_POST_STEPS, _REDRAWS = 32, 16, 5


@dataclass
class EditedBlock:
    """A block that is decoded.

    is_prompt, is_original: which tokens are of the prompt, and which were masks on the canvas.
    step, post: passes so far, and those since its last original mask was filled.
    seen: all states that passes have written.
    n_masks: its masks at first.
    """

    tokens: list[int]
    is_prompt: list[bool]
    is_original: list[bool]
    step: int = 0
    post: int = 0
    is_done: bool = False
    seen: set[tuple[int, ...]] = field(default_factory=set)
    n_masks: int = 0


class Insertions(PassByPass):
    """Rows whose blocks of `length` tokens are edited one after the other; an answer ends at the end of a block."""

    def begin(self) -> None:
        """Runs the prompts, and lays out the first blocks."""
        config, self.own = self.denoiser.model.config, own_options(InsertionDeletion, self.options)
        self.mask, self.delete, self.split = self.denoiser.mask_token_id, config.delete_token_id, config.split_token_id
        self.most_post = _DEFAULT_POST_STEPS if self.own.max_post_steps is None else self.own.max_post_steps
        self.texts = [list(canvas.token_ids) for canvas in self.canvases]
        self.starts = [canvas.prompt_length // self.length * self.length for canvas in self.canvases]
        if with_prompt := [n for n, start in enumerate(self.starts) if start]:
            begins = [self.shared[n] for n in with_prompt]
            before = [self.texts[n][self.shared[n] : self.starts[n]] for n in with_prompt]
            self.run(with_prompt, before, begins, self._own_block, is_step=False, last_only=True)
        self.blocks = [self._next(n) for n in range(len(self.canvases))]
        self.randoms = [Random(canvas.seed) for canvas in self.canvases]

    def _next(self, row: int) -> EditedBlock:
        """The block at a row's start, as it is on the canvas."""
        start = self.starts[row]
        tokens = self.texts[row][start : start + self.length]
        is_mask = [token == self.mask for token in tokens]
        return EditedBlock(tokens, [not each for each in is_mask], is_mask, n_masks=sum(is_mask))

    def _own_block(self, columns: "Tensor") -> "Tensor":
        return (columns // self.length + 1) * self.length - 1

    def written(self, row: int) -> list[int] | None:
        """The tokens up to the end of a block that is done."""
        block, stop = self.blocks[row], self.starts[row] + self.length
        block.is_done = block.is_done or self._is_over(block)
        if not block.is_done:
            return None
        self.texts[row][self.starts[row] : stop] = block.tokens
        return self.texts[row][self.canvases[row].prompt_length : stop]

    def step(self, rows: list[int]) -> None:
        """Runs one pass; over blocks that are done, it remembers the keys and values of their final tokens."""
        windows = [self.blocks[n].tokens for n in rows]
        logits = self.run(rows, windows, [self.starts[n] for n in rows], self._own_block, is_step=False)
        for n, of_row in zip(rows, logits, strict=True):
            block = self.blocks[n]
            if block.is_done:
                self.starts[n] += self.length
                self.blocks[n] = self._next(n)
            else:
                self.costs[n].steps += 1
                self._edit(n, of_row)

    def _is_over(self, block: EditedBlock) -> bool:
        """Whether a block needs no further pass."""
        masks = [i for i, token in enumerate(block.tokens) if token == self.mask]
        block.post = 0 if any(block.is_original[i] for i in masks) else block.post + 1
        return block.n_masks == 0 or (not masks and block.post > self.most_post)

    def _edit(self, row: int, logits: "Tensor") -> None:
        """Changes a row's block by its `logits` [B, V]."""
        block = self.blocks[row]
        before = list(block.tokens)
        confidence, proposed = (values.tolist() for values in logits.softmax(-1).max(-1))
        chosen, is_final = self._masks_to_fill(block, confidence)
        if (threshold := self.own.editing_threshold) is not None:
            chosen |= {
                i
                for i, token in enumerate(before)
                if not (token == self.mask or block.is_prompt[i]) and confidence[i] > threshold and proposed[i] != token
            }
        if is_final:
            logits[:, [self.delete, self.split]] = -float("inf")
            proposed = logits.argmax(-1).tolist()
        written = [proposed[i] if i in chosen else token for i, token in enumerate(before)]
        if not is_final:
            self._redraw(block, before, written, logits, self.randoms[row])
        block.seen.add(tuple(written))
        block.step += 1
        self._rebuild(row, before, written, confidence)
        block.is_done = block.tokens == before and self.mask not in before

    def _redraw(
        self, block: EditedBlock, before: Sequence[int], written: list[int], logits: "Tensor", random: Random
    ) -> None:
        """Changes tokens of a state that was written before, which would repeat for ever."""
        for _ in range(_REDRAWS):
            changed = [i for i in range(len(before)) if written[i] != before[i]]
            if not changed or tuple(written) not in block.seen:
                return
            index = random.choice(changed)
            logits[index, written[index]] = -float("inf")
            written[index] = int(logits[index].argmax())

    def _masks_to_fill(self, block: EditedBlock, confidence: Sequence[float]) -> tuple[set[int], bool]:
        """The masks that this pass fills, and whether no other pass follows, so that it fills all."""
        options, steps = self.options, self.options.steps_per_block or _DEFAULT_STEPS
        masks = [i for i, token in enumerate(block.tokens) if token == self.mask]
        if block.post >= max(1, self.most_post) or block.step == self.own.max_steps_per_block - 1:
            return set(masks), True
        originals = {i for i in masks if block.is_original[i]}
        chosen = set(masks)
        if block.step < steps:
            need = block.n_masks // steps + (block.step < block.n_masks % steps) + len(masks) - len(originals)
            threshold = options.confidence_threshold
            sure = [i for i in masks if threshold is not None and confidence[i] > threshold]
            chosen = set(sure if len(sure) >= need else sorted(masks, key=lambda i: -confidence[i])[:need])
        if self.most_post == 0 and originals and originals <= chosen:  # no pass follows that could edit
            return set(masks), True
        return chosen, False

    def _rebuild(self, row: int, before: Sequence[int], written: Sequence[int], confidence: Sequence[float]) -> None:
        """Carries out DELETE and SPLIT in the tokens as written, and cuts or fills the block on the right."""
        block = self.blocks[row]
        # Each with its index n before; a new mask in front of index n has -1 - n.
        new: list[tuple[int, bool, bool, int]] = []
        for i, token in enumerate(written):
            flags = (block.is_prompt[i], block.is_original[i])
            if block.is_prompt[i] or token not in (self.delete, self.split):
                new.append((token, *flags, i))
            elif token == self.split:
                new += [(self.mask, False, False, -1 - i), (before[i], *flags, i)]
        new = (new + [(self.mask, False, False, -1 - len(before))] * len(written))[: len(written)]
        block.tokens, block.is_prompt, block.is_original, origins = (list(values) for values in zip(*new, strict=True))
        kept = dict(zip(origins, block.tokens, strict=True))
        sure = [*confidence, 0.0]
        events = [Event(0, -1 - n, None, self.mask, sure[-1 - n]) for n in origins if n < 0]
        events += [Event(0, i, old, kept.get(i), sure[i]) for i, old in enumerate(before) if kept.get(i) != old]
        self.note(row, self.starts[row], events)


@dataclass(frozen=True)
class InsertionDeletion(BatchDecoder):
    """Serves checkpoints whose config names a token that deletes."""

    loop: ClassVar[type[PassByPass]] = Insertions

    editing_threshold: float | None = EDITING_THRESHOLD
    max_post_steps: int | None = MAX_POST_STEPS
    max_steps_per_block: int = option(1000, "Limit of passes per block (LLaDA2.2). The last fills all masks", least=1)

    @classmethod
    def serves(cls, denoiser: "Denoiser", options: DecodingOptions) -> bool:
        """Whether the config names a token that deletes."""
        return denoiser.model.config.to_dict().get("delete_token_id") is not None


register(name="insertion_deletion", row_decoder=InsertionDeletion)
