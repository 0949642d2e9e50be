"""Attention patterns: which positions of a canvas see each other."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AttentionPattern:
    """Full attention, or block-causal attention: a position sees its own block and those before it.

    block_length: tokens of a block; None for full attention.
    blocks_from: the position at which the first block begins: the first token of a row (LLaDA2.x, SDAR, Fast-dLLM v2);
        or the end of its prompt, so that the prompt's first block is the short one (A2D).
    whole_prompt: whether the prompt is one block, if blocks are counted from its end.
    causal_context: whether the prompt and finished blocks are attended causally, so that only the block that is
        denoised sees its later tokens (Nemotron-Labs-Diffusion). Keys and values of a block change when it is finished,
        and a finished block predicts the next token.
    whole_blocks: whether canvases end with a whole block, as the tokens of a block share experts (LLaDA2.2).
    """

    block_length: int | None = None
    blocks_from: Literal["row_start", "prompt_end"] = "row_start"
    whole_prompt: bool = False
    causal_context: bool = False
    whole_blocks: bool = False

    @cached_property
    def is_block_causal(self) -> bool:
        """Whether finished blocks never see later tokens, so that their keys and values stay exact."""
        return self.block_length is not None

    @cached_property
    def shared_step(self) -> int | None:
        """The step, in tokens, in which the lengths of shared prefixes vary; None if rows cannot share prefixes.

        Keys and values of a shared prefix must not depend on later tokens, which differ between rows.
        """
        if self.causal_context and self.is_block_causal:
            return 1
        return None if self.whole_prompt else self.block_length

    def start_of(self, position: int, prompt_length: int) -> int:
        """The first position of the block that a position is in."""
        start, number = position, self.block_of(position, prompt_length)
        while start > 0 and self.block_of(start - 1, prompt_length) == number:
            start -= 1
        return start

    def order_of(self, positions: "Tensor", prompt_lengths: "Tensor") -> "Tensor":
        """The order [B, T] of `positions` [B, T], with `prompt_lengths` [B, 1].

        A position sees those of the same or a lower order. With a causal context, a canvas ends with the block that is
        denoised; a canvas that is all prompt is attended causally throughout.
        """
        if not self.causal_context or self.block_length is None:
            return self.block_of(positions, prompt_lengths)
        block = (positions - prompt_lengths) // self.block_length  # negative in the prompt
        is_last = (block >= 0) & (block == block.amax(1, keepdim=True))
        return positions.masked_fill(is_last, positions.shape[1])

    def block_of(self, position: Any, prompt_length: Any = 0) -> Any:
        """The number of the block that a position is in, of a row with `prompt_length` tokens; integers or tensors."""
        if self.block_length is None:
            return position * 0
        if self.whole_prompt:
            number = (position - prompt_length) // self.block_length + 1
            return number * (number > 0)
        shift = -prompt_length % self.block_length if self.blocks_from == "prompt_end" else 0
        return (position + shift) // self.block_length


FULL_ATTENTION = AttentionPattern()


def block_causal_mask(block_ids: "Tensor") -> "Tensor":
    """Which keys a query sees, [B, 1, T, T] bool, from each position's block number [B, T], -1 for padding.

    A position sees its own block and those before it. Padding sees itself alone, so that no row of the mask is empty,
    and no other position sees it.
    """
    queries, keys = block_ids[:, None, :, None], block_ids[:, None, None, :]
    itself = block_ids.new_ones(block_ids.shape[1]).diag().bool()
    return ((keys <= queries) & (keys >= 0)) | ((queries < 0) & itself)
