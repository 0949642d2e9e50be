"""`unmasking=entropy`: the lowest entropy first (Dream's `entropy`)."""

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import LAST, Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("entropy")
def entropy(candidates: Candidates) -> Tensor:
    """Priorities [N]: negative entropy in nats."""
    return -torch.special.entr(candidates.probabilities).sum(-1).masked_fill(candidates.comes_last, -LAST)
