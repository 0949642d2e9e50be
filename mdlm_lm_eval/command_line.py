"""What all commands share: `name=value` arguments as lm-eval reads them, and how they end."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lm_eval._cli.utils import MergeDictAction

from mdlm_lm_eval.options import OptionError

_STOPPED, _PIPE_CLOSED = 130, 141  # as a shell counts SIGINT and SIGPIPE


class NamedValues(MergeDictAction):
    """`name=value,name=value` or JSON, read as lm-eval reads `--model_args`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Ends the command where JSON cannot be read."""
        try:
            super().__call__(parser, namespace, values, option_string)
        except ValueError as error:
            parser.error(f"argument {option_string}: {error}")


def typed(arguments: Mapping[str, Any]) -> str:
    """`name=value,name=value`, or JSON where a value would not survive that: what `NamedValues` reads."""
    if any(isinstance(value, (dict, list)) or set(str(value)) & set(",={") for value in arguments.values()):
        return json.dumps(arguments)
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def lm_eval_command(flags: Mapping[str, Any]) -> str:
    """`lm_eval` with these flags: several words are a list, True is the flag alone; what is empty is left out."""
    words = ["lm_eval"]
    for name, value in flags.items():
        if value is None or value is False or value in ({}, [], ""):
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += value
        elif isinstance(value, Mapping):
            words.append(typed(value))
        elif value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return shlex.join(words)


@contextmanager
def ending_well(command: str, *, after_stop: str) -> Iterator[None]:
    """The whole of a command: an OptionError is one sentence and the exit code 2, Ctrl-C says `after_stop`."""
    try:
        yield
        if "torch" in sys.modules:  # a process that is still in its group may be aborted when it ends
            from torch import distributed

            if distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
        sys.stdout.flush()
    except OptionError as error:
        sys.stderr.write(f"{command}: {error}\n")
        sys.exit(2)
    except BrokenPipeError:
        # The reader is gone; what is left would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_CLOSED)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{command}: stopped; {after_stop}\n")
        sys.exit(_STOPPED)


def show_option_errors_alone() -> None:
    """Lets an OptionError that ends the `lm_eval` command be one sentence without a traceback."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, OptionError):
            sys.stderr.write(f"mdlm: {error}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = show
