"""An unmasking rule in one file: the last masks first.

Import it before decoding, or let a package name it in its pyproject.toml:

    [project.entry-points."mdlm_lm_eval.unmasking"]
    right_to_left = "acme.unmasking:right_to_left"
"""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Candidates
from mdlm_lm_eval.decoding.rules import register_unmasking


@register_unmasking("right_to_left")
def right_to_left(candidates: Candidates) -> Tensor:
    """Priorities [N]: a mask's place in its row."""
    return candidates.slot_numbers.float()
