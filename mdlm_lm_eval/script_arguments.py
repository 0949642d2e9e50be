"""Arguments of the families' own evaluation scripts that have no option of the same meaning.

Arguments with an option of the same meaning are accepted under their own names, which the options declare.
"""

from typing import Any

from mdlm_lm_eval.options import OptionError, must_be, parse_flag, shown

_IN_CONTEXT = "max_length= limits prompt and masks together"
_TRAINED = "peft= loads a trained adapter"
_OFF = ("false", "none")
_EMPTY = ("[]", "none")
# Name -> values that change nothing here, in lower case, and the sentence about any other value.
_WITHOUT_OPTION: dict[str, tuple[tuple[str, ...], str]] = {
    "alg_temp": (("0", "0.0", "none"), ""),
    "apply_chat_template": (_OFF, "type --apply_chat_template, a flag of lm_eval"),
    "autogptq": (_OFF, "a GPTQ checkpoint says so in its config"),
    "begin_suppress_tokens": (_EMPTY, "eos_last=true fills in end-of-text and end-of-turn tokens last"),
    "bias": (("none",), _TRAINED),
    "cfg_keep_tokens": (_EMPTY, "guidance masks the whole prompt"),
    "classifier_free_guidance": (("1", "1.0"), "use cfg_scale, which is smaller by 1"),
    "eps": (("0.001", "1e-3", "1e-03"), ""),
    "gguf_file": (("none",), "GGUF is not supported; give a folder with safetensors"),
    "log_type": (("ftb",), ""),
    "lora": (_OFF, _TRAINED),
    "lora_alpha": ((), _TRAINED),
    "lora_dropout": ((), _TRAINED),
    "max_prompt_len": ((), _IN_CONTEXT),
    "modules_to_save": (("none",), _TRAINED),
    "nll_type": (("mc",), "likelihood=chain predicts one token after the other"),
    "pad_to_max_len": (_OFF, "padding changes no logits here"),
    "prompt_length": ((), _IN_CONTEXT),
    "r": ((), _TRAINED),
    "remasking_strategy": (
        (),
        "low_confidence_static is unmasking=confidence, low_confidence_dynamic confidence_threshold, sequential "
        "unmasking=left_to_right, entropy_bounded entropy_bound",
    ),
    "return_dict": (("true", "false"), ""),
    "sampling_eps": (("0", "0.0", "0.001", "1e-3", "1e-03"), "the estimator masks whole numbers of tokens"),
    "save_dir": (("none",), "lm_eval's --output_path keeps results and its --use_cache FILE answers"),
    "show_speed": (_OFF, "every run prints its speed; leave it out"),
    "stochastic_transfer": (_OFF, ""),
    "stopping_criteria_idx": (
        ("none",),
        "answers end at the checkpoint's own end tokens, and at a task's stop strings",
    ),
    "suppress_tokens": (_EMPTY, "suppress_eos=true never fills in an end-of-text token"),
    "target_modules": ((), _TRAINED),
    "use_block_cache": (_OFF, "the approximate cache within a block is not supported"),
}


def without_script_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Returns model arguments without those that have no option here.

    Fast-dLLM's and dLLM's caches, and Dream's `alg=confidence_threshold`, become our options. Raises OptionError for a
    value with another meaning, and names the option to type instead.
    """
    kept = {}
    for name, value in given.items():
        if name not in _WITHOUT_OPTION:
            kept[name] = value
            continue
        neutral, instead = _WITHOUT_OPTION[name]
        if str(value).lower() not in neutral:
            raise OptionError(f"{name}={shown(value)}: {instead}") if instead else must_be(name, neutral[0], value)
    return _own_threshold(_own_cache(kept))


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
