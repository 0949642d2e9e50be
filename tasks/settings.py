"""What a user may change about the few-shot suite by `--metadata`."""

from collections.abc import Iterable, Mapping
from typing import Any

from mdlm_lm_eval.options import must_be, parse_whole, unknown_option
from mdlm_lm_eval.tasks.prompts import TEMPLATES
from mdlm_lm_eval.tasks.questions import DEFAULT_SEED

DEFAULT_SETTINGS: dict[str, Any] = {
    "fewshot_relevant": 10,
    "fewshot_distractors": 40,
    "fewshot_seed": DEFAULT_SEED,
    "fewshot_template": 0,
    "fewshot_labels": "true",
}
LABELS = ("true", "wrong", "hidden")
# Examples are all different, and far fewer fill any model's context.
_LARGEST = {
    "fewshot_relevant": 1_000,
    "fewshot_distractors": 10_000,
    "fewshot_seed": 2**63 - 1,
    "fewshot_template": len(TEMPLATES) - 1,
}


def read_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The suite's settings, in the order of `DEFAULT_SETTINGS`, among all that lm-eval puts into a task's metadata.

    Raises OptionError for a misspelt one and for a value that is not allowed.
    """
    check_names({name: value for name, value in metadata.items() if name.startswith("fewshot_")})
    found = {
        name: parse_whole(name, metadata.get(name, DEFAULT_SETTINGS[name]), most=most)
        for name, most in _LARGEST.items()
    }
    labels = str(metadata.get("fewshot_labels", "true")).lower()  # lm-eval reads a typed `true` as a boolean
    if labels not in LABELS:
        raise must_be("fewshot_labels", f"one of {', '.join(LABELS)}", labels)
    return {**found, "fewshot_labels": labels}


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
