"""An unmasking rule in one file: the last masks first.

Load it with `plugins=unmasking.py`, import it before decoding, or let a package name it in its pyproject.toml:

    [project.entry-points."mdlm_lm_eval.unmasking"]
    right_to_left = "acme.unmasking"
"""

from torch import Tensor

from mdlm_lm_eval.decoding.candidates import Candidates
from mdlm_lm_eval.decoding.rules import UnmaskingRule
from mdlm_lm_eval.registry import register


def right_to_left(candidates: Candidates) -> Tensor:
    """Priorities [N]: a mask's number in its canvas, from the left."""
    return candidates.slot_numbers.float()


register(name="right_to_left", unmasking=UnmaskingRule(right_to_left))
