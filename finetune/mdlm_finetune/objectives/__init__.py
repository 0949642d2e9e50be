"""Training objectives, a module each in this folder, under the names that the option `objective` takes.

register(name="sft", objective=Sft)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import OBJECTIVES

if TYPE_CHECKING:
    from mdlm_finetune.objective import Objective


def objective_class(name: str) -> type[Objective]:
    """The objective of this name, a frozen dataclass. Raises OptionError where there is none."""
    if name not in (names := OBJECTIVES.names()):
        raise OptionError(f"objective={name} does not exist; the objectives are {', '.join(names)}")
    return OBJECTIVES.get(name)
