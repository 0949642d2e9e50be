"""`unmasking=confidence`: the likeliest token first (LLaDA's `low_confidence`, Dream's `maskgit_plus`)."""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("confidence")
def confidence(candidates: Candidates) -> Tensor:
    """Priorities [N]: the probability of the token that a mask would become."""
    return candidates.confidence
