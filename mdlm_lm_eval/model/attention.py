"""What each position of a canvas sees."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AttentionPattern:
    """`full` attention, or `block_causal`: a position sees its own block and those before it.

    block_length: tokens of a block; None for full attention.
    blocks_from: where blocks are counted from: the first token of a row (LLaDA2.x, SDAR, Fast-dLLM v2), or the end of
        its prompt, so that the prompt's first block is the short one (A2D).
    """

    block_length: int | None = None
    blocks_from: Literal["row_start", "prompt_end"] = "row_start"

    @property
    def is_block_causal(self) -> bool:
        """Whether finished blocks never see what comes after them, so that their keys and values stay exact."""
        return self.block_length is not None

    def block_of(self, position: Any, prompt_length: Any = 0) -> Any:
        """Number of the block that a position is in, of a row with so many tokens of prompt; integers or tensors."""
        if self.block_length is None:
            return position * 0
        shift = -prompt_length % self.block_length if self.blocks_from == "prompt_end" else 0
        return (position + shift) // self.block_length


FULL_ATTENTION = AttentionPattern()


def block_causal_mask(block_ids: "Tensor") -> "Tensor":
    """Which keys a query sees, [B, 1, T, T] bool (True = sees), from each position's block number, [B, T], padding -1.

    A position sees the positions of its own block and of those before it. Padding sees itself alone, so that no row is
    empty, and no other position sees it.
    """
    queries, keys = block_ids[:, None, :, None], block_ids[:, None, None, :]
    itself = block_ids.new_ones(block_ids.shape[1]).diag().bool()
    return ((keys <= queries) & (keys >= 0)) | ((queries < 0) & itself)
