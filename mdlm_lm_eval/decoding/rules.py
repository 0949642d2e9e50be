"""Unmasking rules: which of the masks a denoising step fills.

    @register_unmasking("right_to_left")
    def right_to_left(candidates: Candidates) -> Tensor:
        return candidates.slot_numbers.float()

Packages add theirs by such a call, or by an entry point in the group `mdlm_lm_eval.unmasking` that has the rule's name
and the function as its object. Nothing here imports torch: options ask for the names.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from mdlm_lm_eval.options import OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.decoding.candidates import Candidates

ENTRY_POINTS = "mdlm_lm_eval.unmasking"
# Below every other priority, and above that of positions which are no candidates at all: float32's least number.
LAST = -(2 - 2**-23) * 2.0**127

Ranking = Callable[["Candidates"], "Tensor"]


@dataclass(frozen=True)
class UnmaskingRule:
    """`rank` gives priorities [N] of N masks: the highest is unmasked first, of equal ones the leftmost.

    A rule that `is_random` reads `Candidates.random_numbers`, which are drawn for no other. One that does not read
    places looks at neither slot numbers nor block offsets, and its priorities are NaN where logits are.
    """

    rank: Ranking
    is_random: bool
    reads_places: bool = True


_registered: dict[str, UnmaskingRule] = {}


def register_unmasking(
    name: str, *, is_random: bool = False, reads_places: bool = True
) -> Callable[[Ranking], Ranking]:
    """Makes a function known as `unmasking=name`. Raises ValueError if there is a rule of that name."""

    def register(rank: Ranking) -> Ranking:
        if name in _registered:
            raise ValueError(f"an unmasking rule named {name!r} is registered already")
        _registered[name] = UnmaskingRule(rank, is_random, reads_places)
        return rank

    return register


def unmasking_names() -> tuple[str, ...]:
    """Names of all rules: those below, those registered in this process, and those of entry points."""
    return tuple(dict.fromkeys((*_registered, *_installed())))


def unmasking_rule(name: str) -> UnmaskingRule:
    """The rule of a name. Raises KeyError for one that is unknown."""
    if name not in _registered:
        _installed()[name].load()  # registers itself
    return _registered[name]


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


@register_unmasking("confidence", reads_places=False)
def confidence(candidates: "Candidates") -> "Tensor":
    """The likeliest token first (LLaDA's `low_confidence`, Dream's `maskgit_plus`)."""
    # Not finer than float64 tells probabilities near 1 apart, as in the references: of equals the leftmost is first.
    return candidates.odds.round()


@register_unmasking("entropy", reads_places=False)
def entropy(candidates: "Candidates") -> "Tensor":
    """The lowest entropy first (Dream's `entropy`)."""
    return (-candidates.entropy).masked_fill(candidates.comes_last, LAST)


@register_unmasking("left_to_right")
def left_to_right(candidates: "Candidates") -> "Tensor":
    """The leftmost mask first (SDAR's `sequential`)."""
    return -candidates.slot_numbers.float()


@register_unmasking("margin", reads_places=False)
def margin(candidates: "Candidates") -> "Tensor":
    """The largest lead of the likeliest token over the second first (Dream's `topk_margin`)."""
    first, second = candidates.probabilities.topk(2).values.unbind(-1)
    return (first - second).masked_fill(candidates.comes_last, LAST)


@register_unmasking("position_calibrated")
def position_calibrated(candidates: "Candidates") -> "Tensor":
    """What is sure, surprising beside a background text, and near the block's left end first (PC-Sampler)."""
    if candidates.token_frequencies is None:
        raise OptionError("unmasking=position_calibrated needs token_frequencies, and has no likelihood=duel")
    decay, cap = candidates.calibration
    offsets = candidates.slot_numbers if candidates.block_offsets is None else candidates.block_offsets
    surprise = -(candidates.token_frequencies[candidates.tokens] + 1e-9).log()
    return (-decay * offsets).exp() * (candidates.confidence * surprise).clamp(max=cap)


@register_unmasking("random", is_random=True)
def random(candidates: "Candidates") -> "Tensor":
    """An order drawn in advance from a row's seed, the same in every step (LLaDA's `random`)."""
    return candidates.random_numbers
