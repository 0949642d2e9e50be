"""`unmasking=margin`: the largest lead of the likeliest token over the second first (Dream's `topk_margin`)."""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import LAST, Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("margin")
def margin(candidates: Candidates) -> Tensor:
    """Priorities [N]: largest minus second largest probability."""
    first, second = candidates.probabilities.topk(2).values.unbind(-1)
    return (first - second).masked_fill(candidates.comes_last, LAST)
