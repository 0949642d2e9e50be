"""Unmasking rules: which of the masks a denoising step fills. One module a rule, found by its name.

    @register_unmasking("right_to_left")
    def right_to_left(candidates: Candidates) -> Tensor:
        return candidates.slot_numbers.float()

Packages add theirs by such a call, or by an entry point in the group `mdlm_lm_eval.unmasking` that has the rule's name
and the function as its object. Nothing here imports torch: options ask for the names.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from mdlm_lm_eval.decoding.candidates import Candidates

ENTRY_POINTS = "mdlm_lm_eval.unmasking"

Ranking = Callable[["Candidates"], "Tensor"]


@dataclass(frozen=True)
class UnmaskingRule:
    """`rank` gives priorities [N] of N masks: the highest is unmasked first, of equal ones the leftmost.

    A rule that `is_random` reads `Candidates.random_numbers`, which are drawn for no other.
    """

    rank: Ranking
    is_random: bool


_registered: dict[str, UnmaskingRule] = {}


def register_unmasking(name: str, *, is_random: bool = False) -> Callable[[Ranking], Ranking]:
    """Makes a function known as `unmasking=name`. Raises ValueError if there is a rule of that name."""

    def register(rank: Ranking) -> Ranking:
        if name in _registered:
            raise ValueError(f"an unmasking rule named {name!r} is registered already")
        _registered[name] = UnmaskingRule(rank, is_random)
        return rank

    return register


def unmasking_names() -> tuple[str, ...]:
    """Names of all rules: the modules beside this one, those registered in this process, and those of entry points."""
    return tuple(dict.fromkeys((*_built_in(), *_registered, *_installed())))


def unmasking_rule(name: str) -> UnmaskingRule:
    """The rule of a name. Raises KeyError for one that is unknown."""
    if name not in _registered:
        if name in _built_in():
            importlib.import_module(f"{__name__}.{name}")
        else:
            _installed()[name].load()  # registers itself
    return _registered[name]


@functools.cache
def _built_in() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
