"""Keeps lm-eval's `--use_cache` honest: a cache file answers only for the model and the options that filled it, every
repetition of a sampled request with its own answer, and tells what its answers took."""

import os
import sqlite3
from collections.abc import MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

from lm_eval.api.model import hash_args
from sqlitedict import SqliteDict

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import check_file_name, check_writable
from mdlm_lm_eval.results.record import RunRecord

FINGERPRINT_KEY = "mdlm_lm_eval.fingerprint"
RECORD_KEY = "mdlm_lm_eval.record"
SAMPLE_PREFIX = "mdlm_lm_eval.sample "


class RequestCache:
    """Answers as they are finished; does nothing where there is no cache, as lm-eval's own hook does.

    lm-eval's keys hold a request's arguments alone. Sampled requests (`seed` given) get keys of their own instead, or
    all repetitions of one would get one answer.
    """

    def __init__(self, entries: SqliteDict | None) -> None:
        self.entries = entries
        self.unsaved: dict[str, Any] = {}

    def sample(self, arguments: tuple[Any, ...], seed: int) -> str | None:
        """The answer to a sampled generation request, if there is one."""
        return None if self.entries is None else self.entries.get(_sample_key(arguments, seed))

    def add(self, request_type: str, arguments: tuple[Any, ...], answer: Any, *, seed: int | None = None) -> None:
        """An answer for the next `save`."""
        if self.entries is not None:
            key = hash_args(request_type, arguments) if seed is None else _sample_key(arguments, seed)
            self.unsaved[key] = answer

    def save(self, record: RunRecord) -> None:
        """Writes what was added, and the record of all answers so far, to disk at once."""
        if self.entries is not None:
            self.entries.update(self.unsaved | {RECORD_KEY: record})
            self.entries.commit()
            self.unsaved.clear()

    def resume(self) -> RunRecord | None:
        """The record of the answers that the cache holds.

        Forgets what lm-eval kept of sampled requests when a run ended, so that it asks for them again, one by one.
        """
        if self.entries is None:
            return None
        for key in list(self.entries):
            if key.startswith(SAMPLE_PREFIX):
                self.entries.pop(key.removeprefix(SAMPLE_PREFIX).split()[0], None)
        return self.entries.get(RECORD_KEY)


def _sample_key(arguments: tuple[Any, ...], seed: int) -> str:
    return f"{SAMPLE_PREFIX}{hash_args('generate_until', arguments)} {seed}"


def check_cache_file(path: str) -> None:
    """Raises OptionError where nothing can be kept at `path`, or something else is."""
    check_writable(Path(path).parent, "--use_cache")
    check_file_name(path, "--use_cache")
    if Path(path).is_char_device():  # sqlite takes /dev/null for an empty file
        raise OptionError(f"--use_cache: {path} is a device; name another file")
    try:
        if os.path.lexists(path):  # a link that leads nowhere, too
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise OptionError(f"--use_cache: {path} is no request cache: {error}; name another file") from error


def _in_words(value: object) -> str:
    """0 and 0.0 alike: which of them an option is depends on who said it."""
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def claim_cache(cache: MutableMapping[str, Any], fingerprint: dict[str, Any], *, path: str) -> None:
    """Marks an empty cache as filled by `fingerprint`; refuses one that something else filled.

    lm-eval's keys hold the prompt and the request's options alone, so such a cache would answer for n_masks=200 what it
    computed for n_masks=1. Raises OptionError naming what differs.
    """
    wanted = {name: _in_words(value) for name, value in fingerprint.items()}
    if len(cache) == 0:
        cache[FINGERPRINT_KEY] = wanted
        return
    if FINGERPRINT_KEY not in cache:
        raise OptionError(
            f"use_cache: {path} was not filled by --model mdlm with this package; name a new path, or a cache of a run "
            "with the same model and options"
        )
    found = cache[FINGERPRINT_KEY]
    differences = [
        f"{name} was {found.get(name, 'not set')} and is {wanted.get(name, 'not set')}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise OptionError(
            f"use_cache: {path} was filled with another model or other options ({'; '.join(differences)}); name a "
            "new path, or a cache of a run with the same model and options"
        )
