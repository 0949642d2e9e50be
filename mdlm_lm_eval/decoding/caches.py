"""Caches: the keys and values that passes keep for later ones, by the values of the option `cache`.

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
    """The columns that a pass over a block runs, and the keys and values that it takes from earlier passes.

    remembers: whether keys and values are kept at all; if not, every pass runs all columns that the block sees.
    is_exact: whether kept keys and values equal those that a new pass would compute, so that answers are the same.
    runs_rest: whether a pass over a block also runs the columns after it.
    """

    remembers: bool
    is_exact: bool
    runs_rest: bool = False

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Returns a sentence about an option or attention that this cache does not work with; None if it works."""
        return None


@dataclass(frozen=True)
class Exact(CachePolicy):
    """Keeps the finished blocks of block-causal attention, which see nothing after them.

    A pass runs its block; a finished block is run once more, for the keys and values of its final tokens.
    """

    remembers: bool = True
    is_exact: bool = True

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """Refuses full attention, under which every token changes all keys and values."""
        if not attention.is_block_causal:
            return "cache=exact needs a model with block-causal attention"
        return None


@dataclass(frozen=True)
class RenewedPerBlock(CachePolicy):
    """Fast-dLLM's caches for full attention (arXiv 2505.22618): a block's first pass runs the whole canvas.

    For the columns that they do not run, the block's other passes use the keys and values of the first one, although
    tokens change meanwhile.
    """

    remembers: bool = True
    is_exact: bool = False

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


def cache_name(attention: "AttentionPattern", options: "DecodingOptions") -> str:
    """The name of the cache in effect: `auto` is `exact` under block-causal attention, and else `none`."""
    if options.cache == "auto":
        return "exact" if attention.is_block_causal else "none"
    return options.cache


def cache_policy(attention: "AttentionPattern", options: "DecodingOptions") -> CachePolicy:
    """The cache in effect."""
    return CACHES.get(cache_name(attention, options))


register(name="none", cache=CachePolicy(remembers=False, is_exact=True))
register(name="exact", cache=Exact())
register(name="prefix", cache=RenewedPerBlock(runs_rest=True))
register(name="dual", cache=RenewedPerBlock())
