"""Unmasking rules: the order in which denoising steps fill masks.

    def right_to_left(candidates: Candidates) -> Tensor:
        return candidates.slot_numbers.float()

    register(name="right_to_left", unmasking=UnmaskingRule(right_to_left))

Nothing here imports torch: options ask for the names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.decoding.candidates import Candidates

Ranking = Callable[["Candidates"], "Tensor"]


@dataclass(frozen=True)
class UnmaskingRule:
    """An order of masks.

    rank: returns priorities [N] of N masks; the highest is filled first, of equal ones the leftmost.
    is_random: whether it reads `Candidates.random_numbers`, which are drawn only for such rules.
    reads_places: whether it reads slot numbers or block offsets. If not, its priorities must be NaN if logits are.
    """

    rank: Ranking
    is_random: bool = False
    reads_places: bool = True


def confidence(candidates: "Candidates") -> "Tensor":
    """The likeliest token first (LLaDA's `low_confidence`, Dream's `maskgit_plus`)."""
    # Rounded to float64's resolution near 1, as in the references: of equal masks the leftmost is first.
    return candidates.odds.round()


def entropy(candidates: "Candidates") -> "Tensor":
    """The lowest entropy first (Dream's `entropy`)."""
    return candidates.with_last(-candidates.entropy)


def left_to_right(candidates: "Candidates") -> "Tensor":
    """The leftmost mask first (SDAR's `sequential`)."""
    return -candidates.slot_numbers.float()


def margin(candidates: "Candidates") -> "Tensor":
    """The largest lead of the likeliest token over the second first (Dream's `topk_margin`)."""
    first, second = candidates.probabilities.topk(2).values.unbind(-1)
    return candidates.with_last(first - second)


def position_calibrated(candidates: "Candidates") -> "Tensor":
    """Masks first that are sure, rare in a background text, and near the block's left end (PC-Sampler)."""
    if candidates.token_frequencies is None:
        raise OptionError("unmasking=position_calibrated needs token_frequencies, and has no likelihood=duel")
    decay, cap = candidates.options.position_decay, candidates.options.calibration_cap
    offsets = candidates.slot_numbers if candidates.block_offsets is None else candidates.block_offsets
    surprise = -(candidates.token_frequencies[candidates.tokens] + 1e-9).log()
    return (-decay * offsets).exp() * (candidates.confidence * surprise).clamp(max=cap)


def random(candidates: "Candidates") -> "Tensor":
    """An order drawn in advance from a row's seed, the same in every step (LLaDA's `random`)."""
    return candidates.random_numbers


register(name="confidence", unmasking=UnmaskingRule(confidence, reads_places=False))
register(name="entropy", unmasking=UnmaskingRule(entropy, reads_places=False))
register(name="left_to_right", unmasking=UnmaskingRule(left_to_right))
register(name="margin", unmasking=UnmaskingRule(margin, reads_places=False))
register(name="position_calibrated", unmasking=UnmaskingRule(position_calibrated))
register(name="random", unmasking=UnmaskingRule(random, is_random=True))
