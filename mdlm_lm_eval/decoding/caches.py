"""What is remembered between passes, under the names that the option `cache` takes.

Nothing here imports torch: options ask for the names.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdlm_lm_eval.registry import CACHES, UNMASKING, register

if TYPE_CHECKING:
    from mdlm_lm_eval.model.attention import AttentionPattern
    from mdlm_lm_eval.options import DecodingOptions


@dataclass(frozen=True)
class CachePolicy:
    """Which columns a pass over a block runs, and which keys and values it takes from earlier passes.

    remembers: whether keys and values are kept at all; without, every pass runs all that the block sees.
    is_exact: whether what is kept equals what would be computed anew, so that answers are the same.
    runs_rest: whether a pass over a block also runs the columns after it.
    """

    remembers: bool
    is_exact: bool
    runs_rest: bool = False

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """The sentence about an option or an attention that this cache cannot be used with; None where it can."""
        return None


@dataclass(frozen=True)
class Exact(CachePolicy):
    """Finished blocks of block-causal attention, which see nothing after them.

    A pass runs its block; a finished block is run once more, for the keys and values of its final tokens.
    """

    remembers: bool = True
    is_exact: bool = True

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Under full attention every token changes all keys and values."""
        if not attention.is_block_causal:
            return "cache=exact needs a model with block-causal attention"
        return None


@dataclass(frozen=True)
class RenewedPerBlock(CachePolicy):
    """Fast-dLLM's caches for full attention (arXiv 2505.22618): a block's first pass runs the whole canvas.

    The block's other passes use what it computed outside the columns that they run, although tokens change meanwhile.
    """

    remembers: bool = True
    is_exact: bool = False

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Blocks are needed; guidance and drawn orders are not built."""
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


def cache_name(attention: "AttentionPattern", options: "DecodingOptions") -> str:
    """The cache in effect: `auto` is exact where finished blocks see nothing after them, and none elsewhere."""
    if options.cache == "auto":
        return "exact" if attention.is_block_causal else "none"
    return options.cache


def cache_policy(attention: "AttentionPattern", options: "DecodingOptions") -> CachePolicy:
    """The policy of that name."""
    return CACHES.get(cache_name(attention, options))


register(name="none", cache=CachePolicy(remembers=False, is_exact=True))
register(name="exact", cache=Exact())
register(name="prefix", cache=RenewedPerBlock(runs_rest=True))
register(name="dual", cache=RenewedPerBlock())
