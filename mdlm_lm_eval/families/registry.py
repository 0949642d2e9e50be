"""Which family a config belongs to."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mdlm_lm_eval.families.family import Family
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.registry import FAMILIES, register

_AS_GUEST = "its authors' code: sampler=FILE.py:FUNCTION, with modeling=FILE.py:CLASS"
# What the names of checkpoints hold that were trained for a decoder of their own -> what that does, and how to have it.
_OWN_DECODERS = {
    "dreamon": ("expands and contracts the masks", _AS_GUEST),
    "dmax": ("feeds soft embeddings back", _AS_GUEST),
    "d3llm": ("fills several blocks at once, by entropy", "sampler=multi_block"),
    "dparallel": ("fills by thresholds", "confidence_threshold or entropy_threshold"),
}


def own_decoder(pretrained: str) -> tuple[str, str] | None:
    """What the decoder does that a checkpoint of this name was trained for, and how to have it; None where any does."""
    name = PurePath(pretrained.lower())
    words = [part for part in (name.name, name.parent.name) if part]
    return next((said for key, said in _OWN_DECODERS.items() if any(key in word for word in words)), None)


def register_family(family: Family) -> None:
    """Makes the family known under its name and model types. Raises ValueError where they are another's."""
    register(name=family.name, family=family)


def all_families() -> dict[str, Family]:
    """Every family by its name."""
    return FAMILIES.all()


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
    families = all_families()
    name = config.to_dict().get("diffusion_family")  # where the class of transformers does not
    if name is None:
        native = (each for each in families.values() if each.native_config is None)
        found = next((each.name for each in native if config.model_type in each.model_types), None)
        name = found or ("autoregressive" if config.model_type in CONFIG_MAPPING else "remote")
    if name not in families:
        raise OptionError(f"diffusion_family={name!r} must be one of {', '.join(families)}")
    return families[name]
