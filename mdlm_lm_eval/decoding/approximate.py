"""`cache=prefix|dual`: Fast-dLLM's approximate caches for models with full attention (arXiv 2505.22618).

The first pass of a block runs the whole canvas. The others run the block and all behind it (`prefix`), or the block
alone (`dual`), against what the first pass computed for the rest: the block's new tokens do not reach it.
"""

from mdlm_lm_eval.decoding.block_loop import BlockDecoder
from mdlm_lm_eval.decoding.blocks import Block, cached_blocks
from mdlm_lm_eval.decoding.canvas import Canvas
from mdlm_lm_eval.decoding.progress import CanvasProgress


class ApproximateDecoder(BlockDecoder):
    """Rows of a model with full attention. They begin a block together, as that pass is wider, and fill it at their
    own pace.
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
