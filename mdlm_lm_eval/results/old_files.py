"""Converts what earlier versions wrote into result files, so that nothing else knows of it."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# The name of `sampler` in version 0.3, whose "none" is "auto" now. Among typed arguments it may also be LLaDA's name
# of `unmasking`.
OLD_SAMPLER = "remasking"


def renamed_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Returns recorded options under their names of today."""
    options = dict(recorded)
    if OLD_SAMPLER in options:
        before = options.pop(OLD_SAMPLER)
        options["sampler"] = "auto" if before == "none" else before
    options.pop("drafts", None)  # of states between 0.3 and 0.4, which changed no answer
    return options


class Adapter(NamedTuple):
    """An adapter's recipe, and its seed if it is one of several."""

    recipe: str
    seed: int | None = None


def adapter_of(name: str) -> Adapter:
    """Returns recipe and seed of a recorded adapter, whose name holds both: "SFT, seed 1"."""
    found = re.fullmatch(r"(.*), seed (\d+)", name)
    return Adapter(found[1], int(found[2])) if found else Adapter(name)


def has_fault(check: Mapping[str, Any]) -> bool:
    """Returns whether `mdlm-check` found a fault, which its recorded verdict begins with."""
    return str(check["verdict"]).startswith("fault")
