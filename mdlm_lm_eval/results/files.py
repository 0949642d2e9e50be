"""Writes files and folders whole or not at all, and reads JSON."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


class UnusableFile(ValueError):
    """A file that cannot be used; the message is one sentence without the file's name."""


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises UnusableFile if it cannot be read or is cut off."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableFile(f"cannot be read as JSON ({error})") from error


def write_whole(path: Path, text: str) -> None:
    """Writes `text` into a file. If this fails, the file's old content stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{uuid4().hex}.part")  # a process id would not do: processes in containers share them
    try:
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
        yield scratch
        if path.exists():
            os.replace(path, old)
        os.replace(scratch, path)
    finally:
        for left in (scratch, old):
            shutil.rmtree(left, ignore_errors=True)
