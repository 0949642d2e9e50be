"""`unmasking=entropy`: the lowest entropy first (Dream's `entropy`)."""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import LAST, Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("entropy")
def entropy(candidates: Candidates) -> Tensor:
    """Priorities [N]: negative entropy in nats."""
    return (-candidates.entropy).masked_fill(candidates.comes_last, LAST)
