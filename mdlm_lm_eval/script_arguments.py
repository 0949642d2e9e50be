"""Arguments of the families' own evaluation scripts that have no option of the same meaning.

Arguments with an option of the same meaning are accepted under their own names, which the options declare.
"""

from functools import cache
from pathlib import Path
from typing import Any

from mdlm_lm_eval.options import OptionError, must_be, parse_flag, shown


@cache
def _without_option() -> dict[str, Any]:
    import yaml  # not needed for --help

    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def without_script_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Returns model arguments without those that have no option here.

    Fast-dLLM's and dLLM's caches, and Dream's `alg=confidence_threshold`, become our options. Raises OptionError for a
    value with another meaning, and names the option to type instead.
    """
    kept = {}
    for name, value in given.items():
        if (known := _without_option().get(name)) is None:
            kept[name] = value
        elif str(value).lower() not in known["accepts"]:
            if "instead" in known:
                raise OptionError(f"{name}={shown(value)}: {known['instead']}")
            raise must_be(name, known["accepts"][0], value)
    _read_cache(kept)
    _read_threshold(kept)
    if given.keys() & {"alg", "diffusion_steps"}:  # Dream's names bring its schedule, and its order by entropy
        kept.setdefault("schedule", "dream")
        if "alg" not in given:
            kept.setdefault("unmasking", "entropy")
    return kept


def _read_cache(given: dict[str, Any]) -> None:
    """Reads `use_cache` and `dual_cache` of Fast-dLLM, and `use_cache=prefix|dual` of dLLM, as `cache`."""
    asked, is_dual = given.pop("use_cache", None), parse_flag("dual_cache", given.pop("dual_cache", None) or False)
    if str(asked) in ("prefix", "dual"):
        _set(given, "cache", asked, f"use_cache={asked}")
    elif str(asked).lower() != "none" and parse_flag("use_cache", asked):
        if not is_dual:
            raise OptionError("use_cache=true: say which of Fast-dLLM's approximate caches, cache=prefix or cache=dual")
        _set(given, "cache", "dual", "dual_cache=true")
    elif is_dual:
        raise OptionError(
            "dual_cache=true does nothing in Fast-dLLM without use_cache=true; say cache=dual or cache=none"
        )


def _read_threshold(given: dict[str, Any]) -> None:
    """Reads Fast-dLLM's `alg=confidence_threshold` of Dream as `unmasking`; its other algorithms have no threshold."""
    if given.get("alg") == "confidence_threshold":
        if "threshold" not in given:
            raise OptionError("alg=confidence_threshold needs threshold, which is 0.9 if their command has none")
        del given["alg"]
        _set(given, "unmasking", "confidence", "alg=confidence_threshold")
    elif "alg" in given and "threshold" in given:
        raise OptionError(
            f"threshold={shown(given['threshold'])} does nothing in Fast-dLLM with alg={given['alg']}; leave it out, "
            "or say confidence_threshold="
        )


def _set(given: dict[str, Any], name: str, value: Any, typed: str) -> None:
    if name in given:
        raise OptionError(f"{typed} and {name}={shown(given[name])} are the same option")
    given[name] = value
