"""The `lm_eval` command with `--model mdlm`: what is checked before anything loads, and how it ends."""

import argparse
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any

from mdlm_lm_eval.command_line import check_typed
from mdlm_lm_eval.ending import ending_well
from mdlm_lm_eval.options import LARGEST_NUMPY_SEED, DecodingOptions, OptionError, unknown_option
from mdlm_lm_eval.plugin import MODEL_NAME
from mdlm_lm_eval.plugin.samples import check_samples
from mdlm_lm_eval.presets import load_preset
from mdlm_lm_eval.results.files import check_file_name, check_include_path, check_writable
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.tracker import saved_files
from mdlm_lm_eval.tasks.settings import check_metadata
from mdlm_lm_eval.values import must_be, parse_limit, parse_whole, shown

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NAMED_VALUES = ("model_args", "gen_kwargs", "metadata")
# What lm-eval takes from a YAML as it stands there, and fails on where it is used.
_TYPES: dict[str, tuple[type | UnionType, Sequence[str]]] = {
    "names with a value each": (
        dict,
        (*_NAMED_VALUES, "hf_hub_log_args", "wandb_args", "wandb_config_args", "trackio_args"),
    ),
    'names with a value each, such as {"cache_requests": true}': (dict, ("cache_requests",)),
    "a text": (str, ("output_path", "include_path", "use_cache", "system_instruction", "device", "verbosity")),
    "a number": (int | float, ("limit", "num_fewshot", "max_batch_size")),
    "a number or a text": (int | str, ("batch_size",)),
    "true or false": (
        bool,
        (
            *("log_samples", "predict_only", "write_out", "check_integrity", "show_config", "trust_remote_code"),
            *("confirm_run_unsafe_code", "fewshot_as_multiturn"),
        ),
    ),
    "true, false or a template's name": (bool | str, ("apply_chat_template",)),
    "names of tasks": (list, ("tasks",)),
}
_NEVER_NULL = ("cache_requests", "hf_hub_log_args")


def parse(read: Callable[[], argparse.Namespace], words: Sequence[str]) -> argparse.Namespace:
    """What lm-eval reads from `words`. Ends in one sentence where it cannot, and where it takes no number for one."""
    typed = _typed(words)
    tasks = (task for word in typed.tasks for task in word.split(","))
    model = settings_of(typed).get("model")
    is_ours = str(model).lower() == MODEL_NAME or any(task.startswith("mdlm_") for task in tasks)
    try:
        if is_ours and str(model).lower() == MODEL_NAME != model:
            raise must_be("--model", f"typed {MODEL_NAME}", model)
        if is_ours and typed.seed is not None:
            _check_seeds(typed.seed)
        if is_ours and typed.limit is not None:
            parse_limit("--limit", typed.limit)
        given = read()
        if is_ours:
            for option in _NAMED_VALUES:
                for named_values in getattr(typed, option):
                    check_typed(named_values)
    except (ValueError, RecursionError) as error:
        if not is_ours:
            raise
        raise SystemExit(f"lm_eval: {one_line(error)}") from None
    return given


def _typed(words: Sequence[str]) -> argparse.Namespace:
    """Model, tasks and named values as they were typed; lm-eval keeps what it makes of them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", "-C", nargs="?")
    parser.add_argument("--model", "-M", nargs="?")
    parser.add_argument("--seed", nargs="?")
    parser.add_argument("--limit", "-L", nargs="?")
    parser.add_argument("--tasks", "-t", nargs="*", action="extend", default=[])
    parser.add_argument("--model_args", "-a", nargs="*", action="append", default=[])
    for option in _NAMED_VALUES[1:]:
        parser.add_argument(f"--{option}", nargs="*", action="append", default=[])
    return parser.parse_known_args(words)[0]


def _check_seeds(typed: str) -> None:
    """Raises OptionError for what lm-eval's parser takes for no seeds, or in other digits."""
    seeds = [seed.strip() for seed in typed.split(",")]
    if len(seeds) not in (1, 3, 4):
        raise must_be("--seed", "one number, or three or four with commas between them", typed)
    for seed in seeds:
        if seed.lower() != "none":
            parse_whole("--seed", seed, most=LARGEST_NUMPY_SEED)


def run(execute: Callable[[], None], given: argparse.Namespace) -> None:
    """`lm_eval` with these arguments. Ends in one sentence where what the user can mend is wrong."""
    settings = settings_of(given)
    try:
        if settings.get("model") != MODEL_NAME:
            metadata = settings.get("metadata")
            check_metadata(settings.get("tasks") or (), metadata if isinstance(metadata, dict) else {})
            execute()
            saved_files()
            return
    except OptionError as error:
        raise SystemExit(f"lm_eval: {error}") from None
    with ending_well("lm_eval", after_stop="with --use_cache the same command goes on"):
        _check_yaml(given)
        check(settings)
        try:
            execute()
        except sqlite3.Error as error:
            raise OptionError(f"--use_cache: {error}") from error
        for path in saved_files():
            print(f"written: {path}")


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """What the YAML of --config says and, winning over it, the command line."""
    return _of_yaml(given) | {name: value for name, value in vars(given).items() if value is not None}


def _of_yaml(given: argparse.Namespace) -> dict[str, Any]:
    """What the YAML of --config says, nothing where there is none; lm-eval says where it is wrong."""
    if vars(given).get("config") is None:
        return {}
    from lm_eval.config.evaluate_config import DICT_KEYS, EvaluatorConfig
    from lm_eval.utils import simple_parse_args_string

    try:
        settings = EvaluatorConfig.load_yaml_config(given.config)
    except (ValueError, TypeError, OSError):
        return {}
    if isinstance(settings.get("tasks"), str):
        settings["tasks"] = settings["tasks"].split(",")
    if not isinstance(settings.get("seed") or [], list):
        settings["seed"] = str(settings["seed"]).split(",")
    for name in DICT_KEYS:
        if isinstance(settings.get(name), str):
            settings[name] = simple_parse_args_string(settings[name])
    return settings


def _check_yaml(given: argparse.Namespace) -> None:
    """Raises OptionError for a setting that nobody knows, and where the command line replaces more than it names."""
    of_yaml = _of_yaml(given)
    if of_yaml:
        from lm_eval.config.evaluate_config import EvaluatorConfig

        known = [each.name for each in fields(EvaluatorConfig)]
        for name, value in of_yaml.items():
            if name not in known:
                raise unknown_option(f"setting in --config {given.config}:", name, value, known)
    for option in _NAMED_VALUES:
        typed, below = vars(given).get(option), of_yaml.get(option)
        # lm-eval takes the one or the other whole: without `pretrained`, the built-in model would be scored.
        lost = [str(name) for name in below if name not in typed] if typed and isinstance(below, dict) else []
        if lost:
            raise OptionError(
                f"--{option} replaces all that {option} in --config {given.config} says, and leaves out "
                f"{', '.join(lost)}; type {'that' if len(lost) == 1 else 'those'} too"
            )


def check(settings: dict[str, Any]) -> None:
    """Raises OptionError for what lm-eval itself would notice late, in a traceback, or not at all."""
    _check_types(settings)
    check_metadata(settings.get("tasks") or (), settings.get("metadata") or {})
    if settings.get("tasks") is not None and not any(settings["tasks"]):
        raise OptionError("--tasks is not set; name at least one, such as mdlm_context")
    if settings.get("limit") is not None:
        parse_limit("--limit", settings["limit"])
    if isinstance(settings.get("include_path"), str):
        check_include_path(settings["include_path"])
    for seed in settings.get("seed") or ():
        if seed is not None:
            parse_whole("--seed", seed, most=LARGEST_NUMPY_SEED)
    if settings.get("num_fewshot") is not None:
        parse_whole("--num_fewshot", settings["num_fewshot"])
    if settings.get("samples") is not None:
        check_samples(settings["samples"])
    if settings.get("gen_kwargs"):
        from mdlm_lm_eval.requests import parse_gen_kwargs

        parse_gen_kwargs(settings["gen_kwargs"], DecodingOptions(), frozenset())
        _check_sampling(settings["gen_kwargs"], settings.get("model_args") or {})
    for name, example in (
        ("output_path", "a folder, such as results"),
        ("use_cache", "a file, such as cache/model"),
        ("device", "one, such as cuda:0"),
        ("batch_size", "auto or a number"),
    ):
        if settings.get(name) == "":
            raise OptionError(f"--{name} is not set; name {example}")
    if settings.get("verbosity") is not None and settings["verbosity"] not in _LOG_LEVELS:
        raise must_be("--verbosity", f"one of {', '.join(_LOG_LEVELS)}", settings["verbosity"])
    _check_loggers(settings)
    output = settings.get("output_path")
    if output is not None:
        if output.endswith(".json"):
            check_file_name(output, "--output_path")
        check_writable(Path(output).parent if output.endswith(".json") else Path(output), "--output_path")
    if settings.get("use_cache") is not None:
        from mdlm_lm_eval.request_cache import check_cache_file

        check_cache_file(f"{settings['use_cache']}_rank{os.environ.get('RANK', '0')}.db")


def _check_types(settings: Mapping[str, Any]) -> None:
    """Raises OptionError for a setting of another type than lm-eval's parser gives it."""
    for what, (kind, names) in _TYPES.items():
        for name in settings.keys() & set(names):
            value = settings[name]
            if not isinstance(value, kind) and (value is not None or name in _NEVER_NULL):
                raise must_be(name, what, repr(value) if isinstance(value, str) else value)
    for task in settings.get("tasks") or ():
        if not isinstance(task, str):
            raise must_be("tasks", "names of tasks", task)


def _check_sampling(gen_kwargs: Mapping[str, Any], model_args: Mapping[str, Any]) -> None:
    """Raises OptionError for what lm-eval puts among a task's own keys, over which something else would win."""
    from mdlm_lm_eval.requests import LENGTH_NAMES, SAMPLING_NAMES

    preset = load_preset(str(model_args["preset"])) if model_args.get("preset") else {}
    for where, options in (("--model_args", model_args), (f"preset={model_args.get('preset')}", preset)):
        for typed in ("do_sample", *SAMPLING_NAMES):
            name = "temperature" if typed == "do_sample" else typed
            if typed in gen_kwargs and name in options and gen_kwargs[typed] != options[name]:
                lost, winner = f"{typed}={shown(gen_kwargs[typed])}", f"{name}={shown(options[name])}"
                raise OptionError(f"--gen_kwargs {lost} loses to {winner} of {where}; type {name} in --model_args")
    for name in LENGTH_NAMES[1:]:
        if name in gen_kwargs:
            value = shown(gen_kwargs[name])
            raise OptionError(f"--gen_kwargs {name}={value} loses to a task's max_gen_toks; type max_gen_toks={value}")


def _check_loggers(settings: Mapping[str, Any]) -> None:
    """Raises OptionError where results cannot be sent to where they are to go."""
    for option, package in (("wandb_args", "wandb"), ("trackio_args", "trackio")):
        if settings.get(option) and find_spec(package) is None:
            raise OptionError(f"--{option} needs the package {package}: pip install {package}")
    hub = settings.get("hf_hub_log_args") or {}
    if hub:
        from lm_eval.loggers import EvaluationTracker

        known = signature(EvaluationTracker).parameters
        for name, value in hub.items():
            if name not in known:
                raise unknown_option("argument of --hf_hub_log_args", name, value, known)
    for name in ("push_results_to_hub", "push_samples_to_hub"):
        if hub.get(name) and not (os.environ.get("HF_TOKEN") or hub.get("token")):
            raise OptionError(f"--hf_hub_log_args {name}={shown(hub[name])} needs a token: set HF_TOKEN")
