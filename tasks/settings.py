"""What a user may change about the few-shot suite by `--metadata`."""

from collections.abc import Iterable, Mapping
from typing import Any

from mdlm_lm_eval.options import parse_whole, unknown_option
from mdlm_lm_eval.tasks.prompts import TEMPLATES
from mdlm_lm_eval.tasks.questions import DEFAULT_SEED

DEFAULT_SETTINGS = {
    "fewshot_relevant": 10,
    "fewshot_distractors": 40,
    "fewshot_seed": DEFAULT_SEED,
    "fewshot_template": 0,
}
# Examples are all different, and far fewer fill any model's context.
_LARGEST = {
    "fewshot_relevant": 10_000,
    "fewshot_distractors": 10_000,
    "fewshot_seed": 2**63 - 1,
    "fewshot_template": len(TEMPLATES) - 1,
}


def read_settings(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The suite's settings, in the order of `DEFAULT_SETTINGS`, among all that lm-eval puts into a task's metadata.

    Raises OptionError for a misspelt one and for a value that is not allowed.
    """
    check_names({name: value for name, value in metadata.items() if name.startswith("fewshot_")})
    return {
        name: parse_whole(name, metadata.get(name, default), most=_LARGEST[name])
        for name, default in DEFAULT_SETTINGS.items()
    }


def check_names(metadata: Mapping[str, Any]) -> None:
    """Raises OptionError for a setting that the suite does not have."""
    for name, value in metadata.items():
        if name not in DEFAULT_SETTINGS:
            raise unknown_option("setting of the few-shot tasks", name, value, DEFAULT_SETTINGS)


def check_metadata(tasks: Iterable[str], metadata: Mapping[str, Any]) -> None:
    """Raises OptionError for a setting that none of the tasks has; other people's tasks may have any."""
    names = list(tasks)
    if names and all(name.startswith("mdlm_") for name in names):
        check_names(metadata)
