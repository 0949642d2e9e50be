"""Sorts `--model_args` into our options, lm-eval's own arguments and transformers' loading arguments."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import BitsAndBytesConfig

from mdlm_lm_eval.options import (
    APPROXIMATE_CACHES,
    DECODING_NAMES,
    LIKELIHOOD_NAMES,
    MODEL_NAMES,
    TEXT_ARGUMENTS,
    DecodingOptions,
    LikelihoodOptions,
    ModelOptions,
    OptionError,
    unknown_option,
)
from mdlm_lm_eval.precedence import over
from mdlm_lm_eval.presets import load_preset
from mdlm_lm_eval.values import check_batch_size, must_be, parse_flag, parse_whole, shown

OWN_NAMES = DECODING_NAMES | LIKELIHOOD_NAMES | MODEL_NAMES
_LM_EVALS = inspect.signature(HFLM.__init__).parameters
_BITSANDBYTES = inspect.signature(BitsAndBytesConfig.__init__).parameters
HFLM_NAMES = frozenset(_LM_EVALS) - {"self", "kwargs"}
BITSANDBYTES_NAMES = frozenset(_BITSANDBYTES) - {"self", "kwargs"}
FROM_PRETRAINED_NAMES = frozenset(
    {
        "attn_implementation",
        "cache_dir",
        "device_map",
        "device_mesh",
        "experts_implementation",
        "force_download",
        "local_files_only",
        "low_cpu_mem_usage",
        "max_memory",
        "offload_buffers",
        "proxies",
        "quantization_config",
        "token",
        "use_kernels",
        "use_safetensors",
        "variant",
    }
)
# What a model object has behind it already.
LOADING_NAMES = (
    FROM_PRETRAINED_NAMES | BITSANDBYTES_NAMES | {"dtype", "parallelize", "peft", "revision", "subfolder", "tp_plan"}
)
# HFLM's arguments that load a model by means that know nothing of bidirectional attention.
UNSUPPORTED = {
    "autogptq": "a GPTQ checkpoint names its quantisation in its config and loads without it",
    "gptqmodel": "a GPTQ checkpoint names its quantisation in its config and loads without it",
    "delta": "merge the weights into the base model first",
    "gguf_file": "convert the weights to safetensors first",
}

# Without one of them, transformers takes a BitsAndBytesConfig for one of 4 bits.
_BITSANDBYTES_FLAGS = ("load_in_4bit", "load_in_8bit")

KNOWN_NAMES = (OWN_NAMES | HFLM_NAMES | BITSANDBYTES_NAMES | FROM_PRETRAINED_NAMES) - UNSUPPORTED.keys()

# lm-eval and transformers take any text for true.
_FLAGS = {
    name
    for name, parameter in (*_LM_EVALS.items(), *_BITSANDBYTES.items())
    if isinstance(parameter.default, bool) or parameter.annotation == "bool | None"
} | {"force_download", "local_files_only", "low_cpu_mem_usage", "offload_buffers", "use_safetensors"}
_WHOLE_NUMBERS = {"max_batch_size": 1, "max_length": 2, "prefix_token_id": 0}  # and the smallest
_MAPPINGS = ("chat_template_args", "max_memory", "proxies", "quantization_config")
_DTYPES = ("dtype", "mixed_precision_dtype", "softmax_dtype")


@dataclass(frozen=True)
class ModelArguments:
    """Validated model arguments.

    `explicit` names the decoding and likelihood options that the user set, by name or by `preset`, `typed` the decoding
    options that he set by name; `from_family` those that stand at what the model family's authors publish.
    """

    decoding: DecodingOptions
    likelihood: LikelihoodOptions
    explicit: frozenset[str]
    typed: frozenset[str]
    loading: dict[str, Any]
    preset: str | None
    mask_token_id: int | None
    shift_logits: bool | None
    compile: bool
    cache_audit: float | None
    from_family: frozenset[str] = frozenset()

    def with_family_defaults(self, defaults: Mapping[str, object], *, full_attention: bool) -> "ModelArguments":
        """These arguments with what a family's authors publish for every decoding option that nobody set.

        `full_attention` is the model's; only now is known which lengths of the preset go with what the user typed.
        """
        given = {name: getattr(self.decoding, name) for name in self.explicit & DECODING_NAMES}
        typed = {name: value for name, value in given.items() if name in self.typed}
        explicit = over(given, typed, full_attention=full_attention)
        decoding = over(defaults, explicit, full_attention=full_attention)
        return replace(
            self,
            decoding=DecodingOptions(seed=self.decoding.seed).override(decoding),
            explicit=frozenset(explicit) | self.explicit & LIKELIHOOD_NAMES,
            from_family=frozenset(decoding) - frozenset(explicit),
        )


def split_model_arguments(arguments: Mapping[str, Any], *, default_seed: int) -> ModelArguments:
    """Validates everything that can be judged without the model.

    Raises OptionError for a name that nobody knows (with the nearest known one) and for a value that cannot be used.
    """
    for name, value in arguments.items():
        if name in UNSUPPORTED and value not in (None, False):
            raise OptionError(f"{name} is not for masked diffusion models: {UNSUPPORTED[name]}")
        if name not in KNOWN_NAMES | UNSUPPORTED.keys():
            raise unknown_option("model argument", name, value, KNOWN_NAMES, listed=OWN_NAMES)
    own = ModelOptions().override({name: value for name, value in arguments.items() if name in MODEL_NAMES})
    preset = {} if own.preset is None else load_preset(own.preset)
    decoding = over(_decoding(preset), _decoding(arguments), full_attention=False)
    typed = frozenset(_decoding(arguments))
    arguments = {**preset, **arguments}
    _check_audit(own.cache_audit, str(arguments.get("cache", "auto")))
    seed = {"seed": default_seed}
    likelihood = {name: value for name, value in arguments.items() if name in LIKELIHOOD_NAMES}
    loading = {name: value for name, value in arguments.items() if name not in OWN_NAMES | UNSUPPORTED.keys()}
    return ModelArguments(
        decoding=DecodingOptions().override(seed | decoding),
        likelihood=LikelihoodOptions().override(seed | likelihood),
        explicit=frozenset(decoding) | frozenset(likelihood),
        typed=typed,
        loading=check_loading(loading),
        **vars(own),
    )


def _decoding(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in DECODING_NAMES}


def _check_audit(cache_audit: float | None, cache: str) -> None:
    if cache_audit is not None and cache not in APPROXIMATE_CACHES:
        raise OptionError(
            f"cache_audit={shown(cache_audit)} needs cache=prefix or cache=dual; with cache={cache} everything is "
            "decoded exactly"
        )


def check_loading(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's and transformers' arguments, typed. Raises OptionError for a value that cannot be used."""
    checked = dict(arguments)
    given = {name for name, value in arguments.items() if value is not None}
    checked |= {name: parse_flag(name, arguments[name]) for name in _FLAGS if name in given}
    checked |= {
        name: parse_whole(name, arguments[name], least=least) for name, least in _WHOLE_NUMBERS.items() if name in given
    }
    for name in given & {*TEXT_ARGUMENTS, "tokenizer"}:
        if isinstance(arguments[name], (dict, list, bool)):
            raise must_be(name, "a text", arguments[name])
    checked |= {name: str(arguments[name]) for name in TEXT_ARGUMENTS if name in given}
    if isinstance(arguments.get("tokenizer"), (int, float)):
        checked["tokenizer"] = str(arguments["tokenizer"])
    for name in (*TEXT_ARGUMENTS, "tokenizer"):
        # A variable that a script did not set; lm-eval takes it for no adapter. Its own default for a subfolder is "".
        if name != "subfolder" and checked.get(name) == "":
            raise must_be(name, "a text of at least one character", "")
    for name in _DTYPES:
        dtype = arguments.get(name)
        if (
            isinstance(dtype, (str, int, float))
            and dtype != "auto"
            and not isinstance(vars(torch).get(str(dtype)), torch.dtype)
        ):
            raise must_be(name, "one of auto, float32, bfloat16, float16", dtype)
    for name in _MAPPINGS:
        if isinstance(arguments.get(name), (str, int, float)):
            raise must_be(name, "names with a value each, in JSON", arguments[name])
    if isinstance(arguments.get("device_mesh"), (str, int, float)):
        raise must_be("device_mesh", "a DeviceMesh of torch, from Python", arguments["device_mesh"])
    for name, choices in (("backend", ("default", "causal")), ("tp_plan", ("auto",))):
        if isinstance(arguments.get(name), (str, int, float)) and arguments[name] not in choices:
            raise must_be(name, f"one of {', '.join(choices)}", arguments[name])
    check_batch_size(arguments.get("batch_size"))
    if checked.get("enable_thinking") and checked.get("think_end_token") is None:
        raise OptionError("enable_thinking=true needs think_end_token, where a thinking part ends, such as </think>")
    _check_quantisation(checked)
    return checked


def _check_quantisation(loading: Mapping[str, Any]) -> None:
    """Raises OptionError for two quantisations at once, and for options of one that is not asked for."""
    flags = [name for name in _BITSANDBYTES_FLAGS if loading.get(name)]
    if len(flags) > 1:
        raise OptionError(f"{' and '.join(f'{name}=true' for name in flags)} exclude each other")
    if flags and loading.get("quantization_config") is not None:
        raise OptionError(
            f"{flags[0]}=true and quantization_config={shown(loading['quantization_config'])} exclude each other"
        )
    asked = [name for name in sorted(BITSANDBYTES_NAMES & loading.keys()) if loading[name] not in (None, False)]
    if asked and not flags:
        raise OptionError(
            f"{asked[0]}={shown(loading[asked[0]])} needs {' or '.join(f'{flag}=true' for flag in _BITSANDBYTES_FLAGS)}"
        )


def bitsandbytes_arguments(loading: dict[str, Any]) -> dict[str, Any]:
    """`loading` with `load_in_4bit` and its kin, which transformers 5 no longer takes, as a quantisation config."""
    quantisation = {name: loading[name] for name in BITSANDBYTES_NAMES & loading.keys() if loading[name] is not None}
    rest = {name: value for name, value in loading.items() if name not in BITSANDBYTES_NAMES}
    if not any(quantisation.get(name) for name in _BITSANDBYTES_FLAGS):
        return rest
    return rest | {"quantization_config": BitsAndBytesConfig(**quantisation)}
