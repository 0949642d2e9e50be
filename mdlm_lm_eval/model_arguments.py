"""Sorts `--model_args` into our options, lm-eval's own arguments and transformers' loading arguments."""

import difflib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from mdlm_lm_eval.presets import load_preset

DECODING_NAMES = frozenset(field.name for field in fields(DecodingOptions))
LIKELIHOOD_NAMES = frozenset(field.name for field in fields(LikelihoodOptions))
CHECKPOINT_NAMES = frozenset({"mask_token_id", "shift_logits", "compile"})
HFLM_NAMES = frozenset(inspect.signature(HFLM.__init__).parameters) - {"self", "kwargs"}

BITSANDBYTES_NAMES = frozenset(
    {
        "load_in_4bit",
        "load_in_8bit",
        "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_storage",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_has_fp16_weight",
        "llm_int8_skip_modules",
        "llm_int8_threshold",
    }
)
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

KNOWN_NAMES = (
    DECODING_NAMES
    | LIKELIHOOD_NAMES
    | CHECKPOINT_NAMES
    | HFLM_NAMES
    | BITSANDBYTES_NAMES
    | FROM_PRETRAINED_NAMES
    | {"preset"}
) - UNSUPPORTED.keys()


@dataclass(frozen=True)
class ModelArguments:
    """Validated model arguments.

    `explicit` names the decoding and likelihood options that the user set, by name or by `preset`.
    """

    preset: str | None
    decoding: DecodingOptions
    likelihood: LikelihoodOptions
    explicit: frozenset[str]
    mask_token_id: int | None
    shift_logits: bool | None
    compile: bool
    loading: dict[str, Any]


def split_model_arguments(arguments: Mapping[str, Any], *, default_seed: int) -> ModelArguments:
    """Validates everything that can be judged without the model.

    Raises OptionError for a name that nobody knows (with the nearest known one) and for a value that is not allowed.
    """
    for name, value in arguments.items():
        if name in UNSUPPORTED and value not in (None, False):
            raise OptionError(f"{name}={value!r} is not allowed with masked diffusion models: {UNSUPPORTED[name]}")
        if name not in KNOWN_NAMES | UNSUPPORTED.keys():
            raise OptionError(unknown_name("model argument", name, value, KNOWN_NAMES))
    _whole_number(arguments, "max_length", at_least=1)
    _whole_number(arguments, "prefix_token_id")
    _check_batch_size(arguments)
    for name in ("dtype", "softmax_dtype", "mixed_precision_dtype"):
        dtype = arguments.get(name)
        if isinstance(dtype, str) and dtype != "auto" and not isinstance(vars(torch).get(dtype), torch.dtype):
            raise OptionError(f"{name}={dtype!r} is not allowed; allowed are auto, float32, bfloat16, float16")
    if arguments.get("add_bos_token") is not None:
        parse_flag("add_bos_token", arguments["add_bos_token"])
    preset = None if arguments.get("preset") is None else str(arguments["preset"])
    if preset is not None:
        arguments = {**load_preset(preset), **arguments}
    seed = {"seed": default_seed}
    decoding = {name: value for name, value in arguments.items() if name in DECODING_NAMES}
    likelihood = {name: value for name, value in arguments.items() if name in LIKELIHOOD_NAMES}
    if arguments.get("backend", "default") not in ("default", "causal"):
        raise OptionError(f"backend={arguments['backend']!r} is not allowed; allowed are default and causal")
    return ModelArguments(
        preset=preset,
        decoding=DecodingOptions().override(seed | decoding),
        likelihood=LikelihoodOptions().override(seed | likelihood),
        explicit=frozenset(decoding) | frozenset(likelihood),
        mask_token_id=_whole_number(arguments, "mask_token_id"),
        shift_logits=None
        if arguments.get("shift_logits") is None
        else parse_flag("shift_logits", arguments["shift_logits"]),
        compile=parse_flag("compile", arguments.get("compile", False)),
        loading={
            name: value
            for name, value in arguments.items()
            if name not in DECODING_NAMES | LIKELIHOOD_NAMES | CHECKPOINT_NAMES | UNSUPPORTED.keys() | {"preset"}
        },
    )


def unknown_name(what: str, name: str, value: object, known: frozenset[str]) -> str:
    """The sentence about an unknown option: the nearest known name, or all of ours where none is near."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    if nearest:
        return f"unknown {what} {name}={value!r}; did you mean {nearest[0]}?"
    ours = sorted(known & (DECODING_NAMES | LIKELIHOOD_NAMES)) or sorted(known)
    return f"unknown {what} {name}={value!r}; the options are {', '.join(ours)}"


def parse_flag(name: str, value: object) -> bool:
    """True or False from a command-line value. Raises OptionError for anything else."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise OptionError(f"{name}={value!r} is not allowed; allowed are true and false")


def bitsandbytes_arguments(loading: dict[str, Any]) -> dict[str, Any]:
    """`loading` with `load_in_4bit` and its kin, which transformers 5 no longer takes, as a quantisation config."""
    quantisation = {name: value for name, value in loading.items() if name in BITSANDBYTES_NAMES}
    if not quantisation:
        return loading
    from transformers import BitsAndBytesConfig

    rest = {name: value for name, value in loading.items() if name not in BITSANDBYTES_NAMES}
    return rest | {"quantization_config": BitsAndBytesConfig(**quantisation)}


def _check_batch_size(arguments: Mapping[str, Any]) -> None:
    _whole_number(arguments, "max_batch_size", at_least=1)
    size = arguments.get("batch_size")
    if size is not None and not re.fullmatch(r"auto(:\d+(\.\d+)?)?|0*[1-9]\d*", str(size)):
        raise OptionError(f"batch_size={size} is not allowed; allowed are auto and whole numbers from 1")


def _whole_number(arguments: Mapping[str, Any], name: str, *, at_least: int = 0) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < at_least:
        raise OptionError(f"{name}={value!r} is not allowed; allowed are whole numbers from {at_least}")
    return int(value)
