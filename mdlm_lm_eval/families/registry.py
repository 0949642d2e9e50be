"""Which families there are: this folder's modules, installed packages' entry points, and what a program registers."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path, PurePath
from pkgutil import iter_modules
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.options import OptionError

ENTRY_POINTS = "mdlm_lm_eval.families"
_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Makes the family known under its name and model types. Raises ValueError where they are another's."""
    for other in _FAMILIES.values():
        differ = (family.config_key, family.published_as) != (other.config_key, other.published_as)
        shared = set() if differ else set(family.model_types) & set(other.model_types)
        if other != family and (shared or other.name == family.name):
            taken = f"model_type {', '.join(sorted(shared))}" if shared else f"name {family.name}"
            raise ValueError(f"family {family.name}: the {taken} belongs to the family {other.name}")
    _FAMILIES[family.name] = family
    return family


def all_families() -> dict[str, Family]:
    """Every family by its name."""
    _discover()
    return dict(_FAMILIES)


@cache
def _discover() -> None:
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    for entry_point in entry_points(group=ENTRY_POINTS):
        found = entry_point.load()  # a Family, or a module that registers its own
        if isinstance(found, Family):
            register_family(found)


def published_family(published: Mapping[str, Any], pretrained: str) -> Family | None:
    """The family that reads a published `config.json`, None where its `model_type` is no family's.

    Of several with that `model_type`, `diffusion_family` in the config decides, then a key that only one of them has,
    then the name of the checkpoint, from its last part to its first: trainers write `name/checkpoint-10`. Raises
    OptionError where none of these does.
    """
    candidates = [family for family in all_families().values() if published.get("model_type") in family.model_types]
    named = [family for family in candidates if family.name == published.get("diffusion_family")]
    keyed = [family for family in candidates if family.config_key in published]
    left = named or keyed or [family for family in candidates if family.config_key is None] or candidates
    if len(left) <= 1:
        return left[0] if left else None
    for part in reversed(PurePath(pretrained).parts):
        for family in left:
            if family.published_as and re.search(family.published_as, part.lower()):
                return family
    names = " or ".join(family.name for family in left)
    raise OptionError(
        f"pretrained={pretrained}: its config.json is of {names}; say which with diffusion_family= among the model "
        "arguments or as a key of config.json"
    )


def family_of(config: PretrainedConfig) -> Family:
    """The family of a config in transformers' terms. Raises OptionError where it names one that is unknown."""
    _discover()
    name = config.to_dict().get("diffusion_family")  # where the class of transformers does not
    if name is None:
        native = (each for each in _FAMILIES.values() if each.native_config is None)
        found = next((each.name for each in native if config.model_type in each.model_types), None)
        name = found or ("autoregressive" if config.model_type in CONFIG_MAPPING else "remote")
    if name not in _FAMILIES:
        raise OptionError(f"diffusion_family={name!r} must be one of {', '.join(sorted(_FAMILIES))}")
    return _FAMILIES[name]
