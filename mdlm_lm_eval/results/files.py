"""Writes files and folders whole or not at all, and reads JSON."""

import errno
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

MOST_BYTES = 2**28  # of a file, or of a line of samples: as objects, they can take twenty times as much memory
DEEPEST = 100  # lists and mappings in each other: Python's own functions end at some hundred


class UnusableFile(ValueError):
    """A file that cannot be used; the message is one sentence without the file's name."""


def read_json(path: Path) -> Any:
    """The content of a JSON file, which may be compressed (`.gz`).

    Raises UnusableFile if it cannot be read, is too large or too deep, or is cut off.
    """
    check_regular(path)
    try:
        with opened(path) as file:
            return parsed_json(file.read(MOST_BYTES + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise UnusableFile(f"cannot be read as JSON ({error})") from error


def opened(path: Path) -> gzip.GzipFile | BufferedReader:
    """A file to read; one that ends in `.gz` is decompressed."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def parsed_json(text: bytes) -> Any:
    """The value of JSON text. Raises UnusableFile if the text is too large, too deep or no JSON."""
    if len(text) > MOST_BYTES:
        raise UnusableFile(f"has more than {MOST_BYTES >> 20} MiB")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"cannot be read as JSON ({error})") from error
    inside = [content] if isinstance(content, dict | list) else []
    for _ in range(DEEPEST):
        values = (one.values() if isinstance(one, dict) else one for one in inside)
        inside = [one for several in values for one in several if isinstance(one, dict | list)]
    if inside:
        raise UnusableFile(f"has more than {DEEPEST} lists and mappings in each other")
    return content


def check_regular(path: Path) -> None:
    """Raises UnusableFile for pipes, devices and loops of links, which cannot be read to an end, and for folders."""
    if os.path.lexists(path) and not path.is_file():
        raise UnusableFile("is no regular file")


def check_inside(path: Path, folder: Path) -> None:
    """Raises UnusableFile if `path` is a link, or below a link, to a file outside `folder`."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UnusableFile("is a link to a file outside its folder")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names this file or folder in the error of a full disk, which names none."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, text: str) -> None:
    """Writes `text` into a file. If this fails, the file's old content stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{uuid4().hex}.part")  # a process id would not do: processes in containers share them
    try:
        with naming(path):
            scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder, which replaces `path` if the block ends without an error.

    Removes the unfinished folder of an earlier process that was killed.
    """
    scratch, old = (path.with_name(f".{path.name}.{kind}") for kind in ("unfinished", "old"))
    for left in (scratch, old):
        shutil.rmtree(left, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        with naming(path):
            yield scratch
        if path.exists():
            os.replace(path, old)
        os.replace(scratch, path)
    finally:
        for left in (scratch, old):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def replaced_content(path: Path, *folders: str) -> Iterator[Path]:
    """Gives an empty folder, whose content moves into `path` if the block ends without an error.

    `folders` of `path` are removed before; what else is there stays.
    """
    path.mkdir(parents=True, exist_ok=True)
    with naming(path), TemporaryDirectory(prefix=".", dir=path.absolute().parent) as made:
        yield Path(made)
        for name in folders:
            shutil.rmtree(path / name, ignore_errors=True)
        for one in Path(made).iterdir():
            one.replace(path / one.name)
