"""`unmasking=left_to_right`: the leftmost mask first (SDAR's `sequential`)."""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("left_to_right")
def left_to_right(candidates: Candidates) -> Tensor:
    """Priorities [N]: masks in the order of the text."""
    return -candidates.slot_numbers.float()
