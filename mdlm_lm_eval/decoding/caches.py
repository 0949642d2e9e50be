"""Caches: the keys and values that passes keep for later ones, by the values of the option `cache`.

A class says which columns a pass over a block of a row runs, whether the finished block is run once more, and which
passes are wide: those over whole canvases or text, which the engine runs apart from passes over blocks. Nothing here
imports torch, as options ask for the names.
"""

from typing import TYPE_CHECKING, ClassVar

from mdlm_lm_eval.registry import UNMASKING

if TYPE_CHECKING:
    from mdlm_lm_eval.model.attention import AttentionPattern
    from mdlm_lm_eval.options import DecodingOptions


class Cache:
    """The cache `none`, which keeps nothing: every pass runs all columns that the block sees.

    remembers: whether keys and values are kept.
    stores_blocks: whether a finished block is run once more, for the keys and values of its final tokens.
    runs_blocks: whether a pass that is not wide runs a block alone.
    waits: whether wide passes wait until half of the rows need one, as one over one row costs about as much as over
        many.
    """

    remembers: ClassVar[bool] = False
    stores_blocks: ClassVar[bool] = False
    runs_blocks: ClassVar[bool] = False
    waits: ClassVar[bool] = False

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Returns a sentence about an option or attention that this cache does not work with; None if it works."""
        return None

    def is_wide(self, n_passes: int, *, stores_text: bool) -> bool:
        """Whether the next pass over a block, after `n_passes`, is wide. `stores_text`: it keeps text after a block."""
        return False

    def columns(self, start: int, stop: int, limit: int, *, is_wide: bool) -> tuple[int, int]:
        """The first column that a pass runs, and the one after the last; a block start:stop sees all before `limit`."""
        return 0, limit


class ExactCache(Cache):
    """Keeps the finished blocks of block-causal attention, which see nothing after them.

    A pass runs its block. Text that follows a finished block runs in the pass that stores it.
    """

    remembers: ClassVar[bool] = True
    stores_blocks: ClassVar[bool] = True
    runs_blocks: ClassVar[bool] = True

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Refuses full attention, under which every token changes all keys and values."""
        if not attention.is_block_causal:
            return "cache=exact needs a model with block-causal attention"
        return None

    def is_wide(self, n_passes: int, *, stores_text: bool) -> bool:
        """Passes that store text, such as a prompt, which is longer than blocks."""
        return stores_text

    def columns(self, start: int, stop: int, limit: int, *, is_wide: bool) -> tuple[int, int]:
        """From the block's first column on."""
        return start, limit


class PrefixCache(Cache):
    """Fast-dLLM's prefix cache for full attention (arXiv 2505.22618): a block's first pass runs the whole canvas.

    For the columns before the block, its other passes use the keys and values of the first one, although tokens change
    meanwhile.
    """

    remembers: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Refuses canvases without blocks, guidance, and random orders."""
        if attention.is_block_causal:
            only = "auto or none for a block diffusion model, whose remembered blocks are exact"
            return f"cache must be {only}, not {options.cache}"
        if options.block_length is None:
            return f"cache={options.cache} needs block_length: what it remembers is renewed at every block"
        if options.cfg_scale > 0.0:
            return f"cfg_scale must be 0 with cache={options.cache}, not {options.cfg_scale:g}"
        if UNMASKING.get(options.unmasking).is_random:
            return f"unmasking must be an order that asks the model with cache={options.cache}, not {options.unmasking}"
        return None

    def is_wide(self, n_passes: int, *, stores_text: bool) -> bool:
        """A block's first pass, which renews the keys and values of all columns."""
        return n_passes == 0

    def columns(self, start: int, stop: int, limit: int, *, is_wide: bool) -> tuple[int, int]:
        """All, then the block and the columns after it."""
        return (0 if is_wide else start), limit


class DualCache(PrefixCache):
    """Fast-dLLM's dual cache, which keeps the columns after the block, too."""

    runs_blocks: ClassVar[bool] = True

    def columns(self, start: int, stop: int, limit: int, *, is_wide: bool) -> tuple[int, int]:
        """All, then the block alone."""
        return (0, limit) if is_wide else (start, stop)


KINDS: dict[str, Cache] = {"dual": DualCache(), "exact": ExactCache(), "none": Cache(), "prefix": PrefixCache()}
