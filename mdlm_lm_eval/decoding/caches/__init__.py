"""What is remembered between passes, one file each, under the names that the option `cache` takes.

register(name="dual", cache=Dual())
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdlm_lm_eval.registry import CACHES

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

    def shared_step(self, attention: "AttentionPattern") -> int | None:
        """As `AttentionPattern.shared_step`, for rows that may begin with a shared prefix; None where they may not."""
        return None

    def refuses(self, options: "DecodingOptions", attention: "AttentionPattern") -> str | None:
        """The sentence about an option or an attention that this cache cannot be used with; None where it can."""
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
        from mdlm_lm_eval.decoding.rules import unmasking_rule

        if attention.is_block_causal:
            only = "auto or none for a block diffusion model, whose remembered blocks are exact"
            return f"cache must be {only}, not {options.cache}"
        if options.block_length is None:
            return f"cache={options.cache} needs block_length: what it remembers is renewed at every block"
        if options.cfg_scale > 0.0:
            return f"cfg_scale must be 0 with cache={options.cache}, not {options.cfg_scale:g}"
        if unmasking_rule(options.unmasking).is_random:
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
