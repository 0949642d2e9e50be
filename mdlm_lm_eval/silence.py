"""Keeps the messages of others from repeating, or from appearing at all."""

import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def silenced(name: str) -> Iterator[None]:
    """Disables a logger, and then makes it what it was, also after an error."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def said_once(*names: str) -> Iterator[None]:
    """Lets each of these loggers give a message once."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(said)
        said.add(record.getMessage())
        return len(said) > before

    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)


@contextmanager
def quiet_git() -> Iterator[None]:
    """Lets `git` answer without complaints: lm-eval asks it for a commit after each evaluation, in any folder."""
    git, path = shutil.which("git"), os.environ.get("PATH", "")
    if git is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        quiet = Path(folder, "git")
        quiet.write_text(f'#!/bin/sh\nexec {shlex.quote(git)} "$@" 2>/dev/null\n')
        quiet.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
        try:
            yield
        finally:
            os.environ["PATH"] = path
