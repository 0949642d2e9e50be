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
    return _own_schedule(_own_threshold(_own_cache(kept)), typed=given)


def _own_schedule(given: dict[str, Any], *, typed: dict[str, Any]) -> dict[str, Any]:
    """Dream's schedule, and its order by entropy, where its names of options are typed and say nothing else."""
    if not typed.keys() & {"alg", "diffusion_steps"}:
        return given
    order = {} if typed.keys() & {"alg", "unmasking"} else {"unmasking": "entropy"}
    return {"schedule": "dream"} | order | given


def _own_cache(given: dict[str, Any]) -> dict[str, Any]:
    """`use_cache` and `dual_cache` of Fast-dLLM, and `use_cache=prefix|dual` of dLLM, as `cache`."""
    kept = {name: value for name, value in given.items() if name not in ("use_cache", "dual_cache")}
    if str(given.get("use_cache")) in ("prefix", "dual"):
        return _with(kept, "cache", given["use_cache"], f"use_cache={given['use_cache']}")
    asked = given.get("use_cache")
    uses_cache = str(asked).lower() != "none" and parse_flag("use_cache", asked)
    is_dual = parse_flag("dual_cache", given.get("dual_cache") or False)
    if uses_cache and is_dual:
        return _with(kept, "cache", "dual", "dual_cache=true")
    if uses_cache:
        raise OptionError("use_cache=true: say which of Fast-dLLM's approximate caches, cache=prefix or cache=dual")
    if is_dual:
        raise OptionError(
            "dual_cache=true does nothing in Fast-dLLM without use_cache=true; say cache=dual or cache=none"
        )
    return kept


def _own_threshold(given: dict[str, Any]) -> dict[str, Any]:
    """`alg=confidence_threshold` of Fast-dLLM's Dream as `unmasking`; other algorithms there ignore the threshold."""
    if "alg" not in given or "threshold" not in given:
        if given.get("alg") == "confidence_threshold":
            raise OptionError("alg=confidence_threshold needs threshold, which is 0.9 if their command has none")
        return given
    if given["alg"] != "confidence_threshold":
        raise OptionError(
            f"threshold={shown(given['threshold'])} does nothing in Fast-dLLM with alg={given['alg']}; leave it out, "
            "or say confidence_threshold="
        )
    kept = {name: value for name, value in given.items() if name != "alg"}
    return _with(kept, "unmasking", "confidence", "alg=confidence_threshold")


def _with(given: dict[str, Any], name: str, value: Any, typed: str) -> dict[str, Any]:
    if name in given:
        raise OptionError(f"{typed} and {name}={shown(given[name])} are the same option")
    return given | {name: value}
