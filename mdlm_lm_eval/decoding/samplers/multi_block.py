"""Fills several blocks at once: a block opens once the previous one is partly filled (d3LLM; D2F, arXiv 2508.09192)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mdlm_lm_eval.decoding.sampler import STOP_AT_EOS, Choice, Needs, Sampler, View
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions, option
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class _Blocks(NamedTuple):
    """The blocks of a pass, [R, C + 1], beginning with the first one that holds masks; the last place is no block's.

    first: [R, 1], the number of the first block.
    block_of: [R, C], each place's block, counted from the first.
    filled: [R, C + 1], the share of each block that is filled; 1 if there is no such block.
    """

    first: "Tensor"
    block_of: "Tensor"
    filled: "Tensor"

    @classmethod
    def of(cls, numbers: "Tensor", masks: "Tensor") -> "_Blocks":
        """The blocks with these `numbers` [R, C] at the places, negative for no block, and these `masks` [R, C]."""
        n = numbers.shape[1]
        first = numbers.where(masks, numbers.amax(1, keepdim=True)).amin(1, keepdim=True)
        block_of = (numbers - first).masked_fill(numbers < first, n)
        none = block_of.new_zeros(len(block_of), n + 1)
        left = none.scatter_add(1, block_of, masks.long())
        size = none.scatter_add(1, block_of, (block_of < n).long())
        return cls(first, block_of, ((size - left).double() / size).nan_to_num(1.0))

    def best(self, among: "Tensor", priority: "Tensor") -> "Tensor":
        """The place `among` [R, C] with the highest priority in each block; of equals the leftmost."""
        block_of = self.block_of.where(among, priority.shape[1])
        order = priority.argsort(dim=1, descending=True, stable=True)
        order = order.gather(1, block_of.gather(1, order).argsort(dim=1, stable=True))  # by block
        block = block_of.gather(1, order)
        is_first = block != block.roll(1, 1)
        is_first[:, 0] = True
        return is_first.new_empty(is_first.shape).scatter_(1, order, is_first) & among

    def have(self, places: "Tensor") -> "Tensor":
        """Whether each block [R, C + 1] holds any of these places [R, C]."""
        return self.filled.new_zeros(self.filled.shape).scatter_add(1, self.block_of, places.double()) > 0


@dataclass(frozen=True)
class MultiBlock(Sampler):
    """Fills the masks of all open blocks that are sure enough, and at least one in blocks that must make progress."""

    block_add_threshold: float = option(
        0.1, "Open the next block once this share of the last open one is filled", least=0, most=1
    )
    active_threshold: float | None = option(
        None,
        "Once this share of a block is filled, each pass also fills a mask of the next block. none: only of "
        "the first open block",
        least=0,
        most=1,
    )
    entropy_threshold: float | None = option(
        None, "Fill every mask whose entropy is at most this, in nats. Replaces confidence_threshold", least=0
    )
    surest_anywhere: bool = option(False, "Always fill the surest mask of all open blocks")
    block_causal: bool = option(False, "With full attention: no block sees later blocks. The prompt is one block")
    stop_at_eos: bool = STOP_AT_EOS

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Refuses other rules, and options that need a plan or another attention."""
        if (self.entropy_threshold is None) == (options.confidence_threshold is None):
            return "sampler=multi_block needs entropy_threshold or confidence_threshold"
        if options.parallel_factor or options.entropy_bound is not None or options.append_blocks:
            return "sampler=multi_block does not work with parallel_factor, entropy_bound or append_blocks"
        if options.small_block_length or options.end_think_boost or options.max_thinking_tokens is not None:
            return "sampler=multi_block does not work with small_block_length, end_think_boost or max_thinking_tokens"
        if attention.causal_context or options.is_approximate:
            return f"sampler=multi_block does not work with a causal context or cache={options.cache}"
        if self.block_causal and not attention.is_block_causal:
            return "block_causal=true needs block_length"
        if attention.is_block_causal and not self.block_causal:
            return "block_causal must be true with sampler=multi_block and a model whose blocks see nothing after them"
        if self.stop_at_eos and self.block_causal:
            return "stop_at_eos must be false with block_causal=true, where no block is opened after an end"
        return None

    def attention(self, attention: AttentionPattern, options: DecodingOptions) -> AttentionPattern:
        """The model's own, or with `block_causal` that of block diffusion."""
        if not self.block_causal or attention.is_block_causal or options.block_length is None:
            return attention
        return AttentionPattern(options.block_length, "prompt_end", whole_prompt=True)

    def needs(self, options: DecodingOptions) -> Needs:
        """All masks, and the numbers of their blocks."""
        return Needs(confidence=True, entropy=self.entropy_threshold is not None, later_blocks=True, answer=True)

    def steps_of(self, n_masks: int, options: DecodingOptions) -> int | None:
        """At most one pass per token."""
        return n_masks

    def state(self, n_rows: int, n_columns: int, device: "torch.device") -> "dict[str, Tensor]":
        """n_open: [R], the number of open blocks. end: [R], the token that ended the answer, -1 before its end."""
        import torch

        n_open = 0 if self.block_causal else 1
        return {"n_open": torch.full((n_rows,), n_open, device=device), "end": torch.full((n_rows,), -1, device=device)}

    def choose(self, view: View, options: DecodingOptions) -> Choice:
        """Opens a block, fills masks by the rule and in blocks that must make progress, and ends the answer."""
        from mdlm_lm_eval.decoding.selection import sure_enough

        blocks = _Blocks.of(view.answer.blocks, view.masks)
        n_open = self._opened(view, blocks)
        among = view.masks & (view.answer.blocks < n_open[:, None])
        if self.entropy_threshold is not None:
            sure = view.entropy <= self.entropy_threshold
        else:
            sure = sure_enough(view.confidence, options.confidence_threshold, strict=True)
        fill = among & sure
        priority = view.priority.where(among, -float("inf"))
        if self.surest_anywhere:
            fill = fill.scatter(1, priority.argmax(1, keepdim=True), True) & among
        lacks = (self._active(blocks) & ~blocks.have(fill)).gather(1, blocks.block_of)
        fill = fill | blocks.best(among, priority) & lacks
        return self._ended(view, Choice(fill=fill, state={**view.state, "n_open": n_open}), among)

    def _opened(self, view: View, blocks: _Blocks) -> "Tensor":
        """How many blocks [R] are open now; the prompt counts as the block before the first."""
        n_open, end = view.state["n_open"], view.state["end"]
        last = n_open[:, None] - 1 - blocks.first  # [R, 1]
        filled = blocks.filled.gather(1, last.clamp(min=0, max=view.tokens.shape[1])).masked_fill(last < 0, 1.0)[:, 0]
        opens = (filled >= self.block_add_threshold) & (n_open <= view.answer.blocks.amax(1)) & (end < 0)
        return n_open + opens

    def _active(self, blocks: _Blocks) -> "Tensor":
        """Whether each block [R, C + 1] must make progress."""
        if self.active_threshold is None:
            active = blocks.filled < -1
        else:
            active = blocks.filled.roll(1, 1) >= self.active_threshold
        active[:, 0] = True
        return active

    def _ended(self, view: View, choice: Choice, among: "Tensor") -> Choice:
        """The choice, which also writes the token that ended an answer wherever no other token will be written.

        With `stop_at_eos` it is written at all later places, with `block_causal` in all blocks that were not opened.
        """
        if not (self.stop_at_eos or self.block_causal):
            return choice
        is_end = view.answer.ends | (choice.fill & view.answer.would_end)
        n_ends = is_end.cumsum(1)
        first = is_end & (n_ends == 1)
        written = view.proposed.where(choice.fill, view.tokens)
        end = (written * first).sum(1).where(first.any(1), view.state["end"])
        if self.stop_at_eos:
            after = (n_ends > 0) & ~first & (view.answer.slots >= 0)
        else:
            is_done = (end >= 0) & ~(among & ~choice.fill).any(1)
            after = view.masks & ~choice.fill & is_done[:, None]
        return choice._replace(
            fill=choice.fill | (after & view.masks),
            change=after & ~view.masks,
            tokens=end[:, None].where(after, view.proposed),
            state={**choice.state, "end": end},
        )


register(name="multi_block", sampler=MultiBlock)
