"""Files and folders that appear whole or not at all, and reading that no file can hang or drown."""

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.values import OptionError, must_be

_MOST_BYTES = 64 * 2**20  # a result file of lm-eval takes some 100 kB
_LONGEST_NAME = 200  # bytes; disks take 255, and lm-eval puts the date into a name, sqlite a longer one beside it


# Halves of characters, which JSON can hold and no other file can.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


class UnusableFile(ValueError):
    """A file that cannot be used; the message is one sentence without the file's name."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's name into an UnusableFile, for commands that read several."""
    try:
        yield
    except UnusableFile as error:
        raise UnusableFile(f"{str(path)!r} {error}") from error


def read_bytes(path: Path, *, at_most: int = _MOST_BYTES) -> bytes:
    """A regular file of at most `at_most` bytes. Raises UnusableFile for anything else."""
    try:
        # Opening a FIFO would wait for a writer, and a link may lead to a device without end.
        descriptor = os.open(path, os.O_RDONLY | vars(os).get("O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise UnusableFile("is no regular file")
            if state.st_size > at_most:
                raise UnusableFile(f"has {state.st_size / 2**20:.0f} MiB; at most {at_most / 2**20:.0f} are read")
            return file.read(at_most)
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """What a JSON file holds, NaN and infinities as text. Raises UnusableFile."""
    text = read_bytes(path)
    try:
        content = json.loads(text, parse_constant=str)
        return _without_surrogates(content) if _SURROGATE.search(text) else content
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"is no whole JSON file ({one_line(error)})") from error


def write_whole(path: Path, text: str) -> None:
    """Writes `text`, or leaves what was there. Raises OptionError where it cannot be written."""
    # Processes in containers have the same ids, and a long name has no room for more.
    scratch = path.with_name(f".{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(scratch, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, gone when the block ends. It also removes what a killed process left of its own."""
    scratch = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def whole_folder(path: Path, *, replaced: bool = False) -> Iterator[Path]:
    """A new folder that becomes `path` if the block ends well.

    Nothing may lie there, unless it is to be `replaced`; then a process that is killed at that very moment leaves
    neither of the two.
    """
    with scratch_folder(path) as scratch:
        yield scratch
        if replaced:
            with scratch_folder(path.with_name(f"{path.name}.old")) as old:
                os.replace(path, old)
                os.replace(scratch, path)
        else:
            os.replace(scratch, path)


def check_writable(folder: Path, option: str) -> None:
    """Makes `folder`, which the option `option` names. Raises OptionError where nothing can be written into it."""
    if folder.parts and folder.parts[0].endswith(":"):  # of s3://bucket/folder
        raise OptionError(f"{option} {folder}: must be a folder on a disk; copy the results from there")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise OptionError(f"{option} {folder} cannot be written: {reason}") from error


def check_file_name(path: str, option: str) -> None:
    """Raises OptionError where a file that the option `option` names has too long a name."""
    name = Path(path).name
    if len(name.encode()) > _LONGEST_NAME:
        raise must_be(option, f"a file's name of at most {_LONGEST_NAME} bytes", name)


def check_include_path(folder: str) -> None:
    """Raises OptionError where lm-eval would look for tasks in vain."""
    if not folder or not Path(folder).is_dir():
        raise must_be("include_path", "a folder with tasks", folder)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(inner) for inner in value]
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
