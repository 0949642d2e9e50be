"""Checkpoints that bring their own code (`trust_remote_code=true`)."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMaskGeneration,
    PretrainedConfig,
)

from mdlm_lm_eval.families import WITHOUT_CACHE, Family, register_family
from mdlm_lm_eval.options import OptionError


def offered_class(auto_map: Mapping[str, str]) -> Any:
    """The auto class of a checkpoint's own code, by the `auto_map` of its config."""
    classes = (AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForMaskGeneration)
    return next((auto_class for auto_class in classes if auto_class.__name__ in auto_map), AutoModel)


def unknown_shift(_config: PretrainedConfig) -> bool:
    """Raises OptionError, as only the author of remote code knows whether its logits are shifted."""
    raise OptionError("shift_logits is not set; remote code needs shift_logits=true or shift_logits=false")


register_family(
    Family(
        name="remote",
        remote_code=True,
        may_see_padding=True,
        model_class=lambda config: offered_class(config.to_dict().get("auto_map", {})),
        shift=unknown_shift,
        supports=WITHOUT_CACHE,
        instead="its code may not keep keys and values as transformers' models do; use cache=none",
    )
)
