"""Functions that all commands share: parsers, `name=value` arguments as lm-eval reads them, errors and exit codes."""

import argparse
import atexit
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from mdlm_lm_eval import __version__
from mdlm_lm_eval.options import OptionError, did_you_mean, unknown_option
from mdlm_lm_eval.results.text import printable

_STOPPED, _PIPE_CLOSED = 130, 141  # a shell's exit codes for SIGINT and SIGPIPE
LM_EVAL_SEEDS = (0, 1234, 1234, 1234)  # lm-eval's default seeds: Python, numpy, torch, few-shot samples
# Environment variables that `torchrun` sets in its processes.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def parser_of(command: str, description: str | None, **more: Any) -> argparse.ArgumentParser:
    """Returns the parser of a command, with the flag `--version`."""
    parser = argparse.ArgumentParser(
        prog=command,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **more,
    )
    parser.add_argument("--version", action="version", version=f"{command} {__version__}")
    return parser


def typed(arguments: Mapping[str, Any]) -> str:
    """Returns arguments as lm-eval reads them: `name=value,name=value`, or JSON if a value needs it."""
    if any(isinstance(value, (dict, list)) or set(str(value)) & set(",={") for value in arguments.values()):
        return json.dumps(arguments)
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def lm_eval_command(flags: Mapping[str, Any], command: str = "lm_eval") -> str:
    """Returns a shell command with these flags.

    A list stands for several words and True for the flag alone. Flags with an empty value are left out.
    """
    words = command.split()
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


@cache
def recipes_in(file: Path) -> dict[str, dict[str, Any]]:
    """Returns the recipes that come with a command, by name."""
    import yaml

    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def read_recipe(packaged: Mapping[str, dict[str, Any]], config: str) -> dict[str, Any]:
    """Returns the settings in a user's YAML file, or of the packaged recipe with this name or first part of it."""
    if Path(config).is_file():
        import yaml

        try:
            found = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            found = " ".join(str(error).split())
        if not isinstance(found, dict):
            raise OptionError(f"--config {config}: holds no settings (name: value, in YAML), but {found}")
        return found
    matches = [config] if config in packaged else [name for name in packaged if name.startswith(f"{config}_")]
    if len(matches) != 1:
        names = sorted(packaged)
        asked = re.sub(r"(?<=[a-z])(?=\d$)", "0", config.lower())  # e1 means e01
        hint = did_you_mean(asked, [*names, *(name.partition("_")[0] for name in names)])
        hint = hint or f"there are {', '.join(names)}"
        raise OptionError(f"--config {config}: there is no such file or packaged recipe; {hint}")
    return dict(packaged[matches[0]])


def refuse_rest(words: Sequence[str], known: Iterable[str], what: str = "option", hint: str = "") -> None:
    """Raises OptionError for the first word that a parser did not recognise, and names the nearest known option.

    hint: added to the error if the word does not begin with a dash.
    """
    if words and not words[0].startswith("-"):
        raise OptionError(f"unexpected word {words[0]!r}" + (f"; {hint}" if hint else ""))
    if words:
        name, _, value = words[0].lstrip("-").partition("=")
        following = [word for word in words[1:2] if not word.startswith("--")]
        raise unknown_option(what, name, value or "".join(following), known)


class _Marked(logging.Handler):
    """Prints a log record after the command's name and its level: lm-eval formats those of its own loggers alone."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{self.name}: {record.levelname.lower()}: {record.getMessage()}\n")


def mark_warnings(command: str) -> None:
    """Begins this package's warnings with the command's name and the word "warning"."""
    ours = logging.getLogger("mdlm_lm_eval")
    if not ours.handlers:
        handler = _Marked()
        handler.name = command
        ours.addHandler(handler)


@contextmanager
def ending_well(command: str, *, after_stop: str) -> Iterator[None]:
    """Runs a whole command: an OptionError prints one sentence and exits with code 2; Ctrl-C prints `after_stop`."""
    mark_warnings(command)
    try:
        yield
        if "torch" in sys.modules:  # a process that ends without leaving its process group may be aborted
            from torch import distributed

            if distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
        sys.stdout.flush()
    except OptionError as error:
        sys.stderr.write(printable(f"{command}: {error}\n", keep="\n"))
        sys.exit(2)
    except BrokenPipeError:
        # Nobody reads the output any more. Without this, the rest of it would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_CLOSED)
    except OSError as error:
        if error.filename is None:
            raise
        name = error.filename2 or error.filename  # of a move, the place that it could not take
        sys.stderr.write(printable(f"{command}: {name}: {error.strerror}; {after_stop}\n", keep="\n"))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{command}: stopped; {after_stop}\n")
        sys.exit(_STOPPED)


def runs_lm_eval() -> bool:
    """Returns whether this process is the command `lm_eval`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "lm_eval.__main__" in {*sys.modules, getattr(spec, "name", None)}


def say_at_the_end(lines_of: Callable[[], Mapping[str, str]]) -> None:
    """Prints these lines after everything else that `lm_eval` prints, with the command that shows the scores.

    Prints nothing if there are no lines, or in other commands.
    """

    def say() -> None:
        folder = _output_path()
        if lines := dict(lines_of()):
            lines["scores"] = f"mdlm-leaderboard show {shlex.quote(folder)}" if folder else ""
        sys.stderr.writelines(f"mdlm: {name:<9} {line}\n" for name, line in lines.items() if line)

    if runs_lm_eval():
        atexit.register(say)


def _output_path() -> str | None:
    """The `--output_path` of the `lm_eval` command, which lm-eval does not tell a model; None without one."""
    words = [part for word in sys.argv for part in word.split("=", 1)]
    return next((folder for flag, folder in pairwise(words) if flag in ("--output_path", "-o")), None)


def check_output_path() -> None:
    """Raises OptionError if `lm_eval` could not write its results, which it would only find out after the run.

    It would then end as if all were well, without results.
    """
    given = _output_path() if runs_lm_eval() else None
    if given is None:
        return
    folder = Path(given).parent if Path(given).suffix == ".json" else Path(given)  # as lm-eval reads it
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise OptionError(f"--output_path {given}: no results could be written there ({error.strerror})") from error


def show_errors_and_warnings_alone() -> None:
    """In the `lm_eval` command, prints an OptionError that ends it without a traceback, and marks our warnings."""
    if runs_lm_eval():
        mark_warnings("mdlm")
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, OptionError):
            sys.stderr.write(f"mdlm: {error}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = show
