"""The `lm_eval` command with `--model mdlm`: what is checked before anything loads, and how it ends."""

import argparse
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mdlm_lm_eval.command_line import check_typed
from mdlm_lm_eval.ending import ending_well
from mdlm_lm_eval.options import LARGEST_NUMPY_SEED, DecodingOptions, OptionError
from mdlm_lm_eval.plugin import MODEL_NAME
from mdlm_lm_eval.plugin.samples import check_samples
from mdlm_lm_eval.results.files import check_file_name, check_include_path, check_writable
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.tracker import saved_files
from mdlm_lm_eval.tasks.settings import check_metadata
from mdlm_lm_eval.values import must_be, parse_limit, parse_whole

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NAMED_VALUES = ("model_args", "gen_kwargs", "metadata")


def parse(read: Callable[[], argparse.Namespace], words: Sequence[str]) -> argparse.Namespace:
    """What lm-eval reads from `words`. Ends in one sentence where it cannot, and where it takes no number for one."""
    typed = _typed(words)
    tasks = (task for word in typed.tasks for task in word.split(","))
    is_ours = (typed.model or "").lower() == MODEL_NAME or any(task.startswith("mdlm_") for task in tasks)
    try:
        if is_ours and typed.model and typed.model.lower() == MODEL_NAME != typed.model:
            raise must_be("--model", f"typed {MODEL_NAME}", typed.model)
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
    settings = _settings(given)
    is_ours = settings.get("model") == MODEL_NAME
    try:
        check_metadata(settings.get("tasks") or (), settings.get("metadata") or {})
        if not is_ours:
            execute()
            saved_files()
            return
    except OptionError as error:
        raise SystemExit(f"lm_eval: {error}") from None
    with ending_well("lm_eval", after_stop="with --use_cache the same command goes on"):
        _check_merge(given)
        check(settings)
        try:
            execute()
        except sqlite3.Error as error:
            raise OptionError(f"--use_cache: {error}") from error
        except AssertionError as error:
            if "--samples" not in str(error):  # of a number that no question has
                raise
            raise OptionError(one_line(error)) from error
        for path in saved_files():
            print(f"written: {path}")


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """What the YAML of --config says and, winning over it, the command line."""
    settings = _of_yaml(given) | {name: value for name, value in vars(given).items() if value is not None}
    for name in ("metadata", "gen_kwargs"):
        if not isinstance(settings.get(name), dict):
            settings[name] = None  # lm-eval says that it is wrong
    return settings


def _of_yaml(given: argparse.Namespace) -> dict[str, Any]:
    """What the YAML of --config says, nothing where there is none; lm-eval says where it is wrong."""
    if vars(given).get("config") is None:
        return {}
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.utils import simple_parse_args_string

    try:
        settings = EvaluatorConfig.load_yaml_config(given.config)
    except (ValueError, TypeError, OSError):
        return {}
    for name in ("tasks", "seed"):
        if not isinstance(settings.get(name) or [], list):
            settings[name] = str(settings[name]).split(",")
    for name in _NAMED_VALUES:
        if isinstance(settings.get(name), str):
            settings[name] = simple_parse_args_string(settings[name])
    return settings


def _check_merge(given: argparse.Namespace) -> None:
    """Raises OptionError where named values that were typed would replace more of the YAML's than they name."""
    of_yaml = _of_yaml(given)
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
    output = settings.get("output_path")
    if output is not None:
        if output.endswith(".json"):
            check_file_name(output, "--output_path")
        check_writable(Path(output).parent if output.endswith(".json") else Path(output), "--output_path")
    if settings.get("use_cache") is not None:
        from mdlm_lm_eval.request_cache import check_cache_file

        check_cache_file(f"{settings['use_cache']}_rank{os.environ.get('RANK', '0')}.db")
