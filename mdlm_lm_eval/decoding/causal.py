"""Block-causal models: a finished block never sees what follows it, so that remembering it changes nothing.

A pass runs each row's current block, at its own place. When the block is finished it is run once more, so that the keys
and values of its final tokens are remembered. With `cache=none` a pass runs the canvas up to the block's end instead.
"""

from mdlm_lm_eval.decoding.block_loop import BlockDecoder
from mdlm_lm_eval.decoding.blocks import Block, causal_blocks
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.progress import CanvasProgress, Phase


class CausalDecoder(BlockDecoder):
    """Rows of a block-causal model, each at its own pace."""

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
