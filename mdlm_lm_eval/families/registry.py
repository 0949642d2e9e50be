"""Which families there are: this folder's modules, installed packages' entry points, and what a program registers."""

import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path, PurePath
from pkgutil import iter_modules

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.options import OptionError

ENTRY_POINTS = "mdlm_lm_eval.families"
_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Makes the family known under its name and model types. Raises ValueError where they are another's."""
    for other in _FAMILIES.values():
        shared = set(family.model_types) & set(other.model_types) if family.published_as == other.published_as else None
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


def family_names() -> str:
    """The families' names, for messages."""
    return ", ".join(sorted(all_families()))


def published_family(model_type: object, pretrained: str = "") -> Family | None:
    """The family whose checkpoints say `model_type` in their `config.json`, None where there is none.

    Where that is said by several, the name of the checkpoint tells, from its last part to its first: trainers write
    `name/checkpoint-10`. Raises OptionError where it does not.
    """
    candidates = [family for family in all_families().values() if model_type in family.model_types]
    hints = [(family, re.compile(family.published_as)) for family in candidates if family.published_as]
    for part in reversed(PurePath(pretrained).parts):
        for family, hint in hints:
            if hint.search(part.lower()):
                return family
    unnamed = [family for family in candidates if not family.published_as]
    if unnamed or not candidates:
        return unnamed[0] if unnamed else None
    names = " or ".join(family.name for family in candidates)
    raise OptionError(
        f"pretrained={pretrained}: nothing says whether its family is {names}; say it under diffusion_family in its "
        f"config.json, or give the folder a name with {' or '.join(str(family.published_as) for family in candidates)}"
    )


def family_of(config: PretrainedConfig) -> Family:
    """The family of a config in transformers' terms. Raises OptionError where it names one that is unknown."""
    name = config.to_dict().get("diffusion_family")  # where the class of transformers does not tell
    if name is not None:
        if str(name) not in all_families():
            raise OptionError(f"diffusion_family={name!r} in config.json must be one of {family_names()}")
        return all_families()[name]
    native = (family for family in all_families().values() if family.native_config is None)
    family = next((family for family in native if config.model_type in family.model_types), None)
    if family is not None:
        return family
    return all_families()["autoregressive" if config.model_type in CONFIG_MAPPING else "remote"]
