"""`unmasking=random`: an order drawn in advance from a row's seed (LLaDA's `random`)."""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("random", is_random=True)
def random(candidates: Candidates) -> Tensor:
    """Priorities [N]: one random number a mask, the same in every step."""
    return candidates.random_numbers
