"""Remembers finished blocks of block-causal attention, which see nothing after them."""

from dataclasses import dataclass

from mdlm_lm_eval.decoding.caches import CachePolicy
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import register


@dataclass(frozen=True)
class Exact(CachePolicy):
    """A pass runs its block; a finished block is run once more, for the keys and values of its final tokens."""

    remembers: bool = True
    is_exact: bool = True

    def shared_step(self, attention: AttentionPattern) -> int | None:
        """What is shared is finished, like the blocks that a row remembers."""
        return attention.shared_step

    def refuses(self, options: DecodingOptions, attention: AttentionPattern) -> str | None:
        """Under full attention every token changes all keys and values."""
        if not attention.is_block_causal:
            return "cache=exact needs a model with block-causal attention"
        return None


register(name="exact", cache=Exact())
