"""The `lm_eval` command with `--model mdlm`: what is checked before anything loads, and how it ends."""

import argparse
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mdlm_lm_eval.ending import ending_well
from mdlm_lm_eval.options import LARGEST_NUMPY_SEED, OptionError
from mdlm_lm_eval.plugin import MODEL_NAME
from mdlm_lm_eval.results.files import check_writable
from mdlm_lm_eval.results.tracker import saved_files
from mdlm_lm_eval.tasks.settings import check_metadata
from mdlm_lm_eval.values import number_of, parse_whole, shown


def run(execute: Callable[[], None], given: argparse.Namespace) -> None:
    """`lm_eval` with these arguments. Ends in one sentence where what the user can mend is wrong."""
    settings = vars(given)
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
        check(settings)
        try:
            execute()
        except sqlite3.Error as error:
            raise OptionError(f"--use_cache: {error}") from error
        for path in saved_files():
            print(f"written: {path}")


def check(settings: dict[str, Any]) -> None:
    """Raises OptionError for what lm-eval itself would notice late, in a traceback, or not at all."""
    if settings.get("tasks") is not None and not any(settings["tasks"]):
        raise OptionError("--tasks is not set; name at least one, such as mdlm_context")
    limit = settings.get("limit")
    if limit is not None and (number_of(limit) is None or limit <= 0):
        raise OptionError(f"--limit must be a number above 0, not {shown(limit)}")
    for seed in settings.get("seed") or ():
        if seed is not None:
            parse_whole("--seed", seed, most=LARGEST_NUMPY_SEED)
    if settings.get("num_fewshot") is not None:
        parse_whole("--num_fewshot", settings["num_fewshot"])
    output = settings.get("output_path")
    if output is not None:
        if not output:
            raise OptionError("--output_path is not set; name a folder, such as results")
        check_writable(Path(output).parent if output.endswith(".json") else Path(output), "--output_path")
    if settings.get("use_cache") is not None:
        from mdlm_lm_eval.request_cache import check_cache_file

        check_cache_file(f"{settings['use_cache']}_rank{os.environ.get('RANK', '0')}.db")
