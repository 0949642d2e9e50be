"""Training objectives by name: a module each in this folder, and those of other packages.

Another package registers its own with `@register_objective("name")`, and names the module that does so in the entry
point group `mdlm_finetune.objectives`, under the objective's name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from mdlm_lm_eval.options import OptionError

if TYPE_CHECKING:
    from mdlm_finetune.objective import Objective

ENTRY_POINTS = "mdlm_finetune.objectives"
_registered: dict[str, type[Objective]] = {}
_Class = TypeVar("_Class", bound="type[Objective]")


def register_objective(name: str) -> Callable[[_Class], _Class]:
    """Makes a class, a frozen dataclass under Objective, the objective `name`."""

    def register(objective: _Class) -> _Class:
        _registered[name] = objective
        return objective

    return register


def objective_names() -> list[str]:
    """What `objective` may be. Imports none of them."""
    built_in = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(built_in | _registered.keys() | entry_points(group=ENTRY_POINTS).names)


def objective_class(name: str) -> type[Objective]:
    """The objective of this name. Raises OptionError where there is none."""
    if name not in objective_names():
        raise OptionError(f"objective={name} does not exist; the objectives are {', '.join(objective_names())}")
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        entry.load()
    if name not in _registered:
        import_module(f"{__name__}.{name}")
    return _registered[name]
