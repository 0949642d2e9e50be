"""Makes lm-eval's `--use_cache` safe for our models.

A cache file answers only for the model and the options that filled it. Each repetition of a sampled request has its own
answer, and the file also keeps the record of the answers.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from lm_eval.api.model import hash_args

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.record import RunRecord

_FINGERPRINT, _RECORD = "mdlm_lm_eval.fingerprint", "mdlm_lm_eval.record"
SAMPLE_PREFIX = "mdlm_lm_eval.sample "


class RequestCache:
    """Saves answers as they are finished, in lm-eval's `entries` on disk.

    lm-eval's keys contain only a request's arguments, so its cache would answer a request with n_masks=200 by an answer
    with n_masks=1. Therefore an empty cache is marked with `fingerprint`, and a cache with another mark is refused: an
    OptionError names the differences.

    A sampled request (one with a seed) has a key of its own; with lm-eval's key, all repetitions would get the same
    answer. lm-eval also writes entries for such requests when a run ends. These are deleted here, so that lm-eval asks
    for each repetition again.

    record: the record of the answers so far; None in an empty cache.
    """

    def __init__(self, entries: Any, fingerprint: dict[str, Any]) -> None:
        wanted = {name: repr(value) for name, value in fingerprint.items()}
        if len(entries) == 0:
            entries[_FINGERPRINT] = wanted
        if (found := entries.get(_FINGERPRINT)) != wanted:
            filled = "was not filled by --model mdlm with this package"
            if found is not None:
                pairs = {name: (found.get(name, "not set"), wanted.get(name, "not set")) for name in found | wanted}
                if len({*pairs.get("dtype", ())}) == 2:  # in which the same weights are other numbers
                    del pairs["weights"]
                changes = [f"{name} was {old} and is {new}" for name, (old, new) in sorted(pairs.items()) if old != new]
                filled = f"was filled with another model or other options ({'; '.join(changes)})"
            raise OptionError(
                f"use_cache: {entries.filename} {filled}; name a new path, or a cache of a run with the same model and "
                "options"
            )
        for key in list(entries):
            if key.startswith(SAMPLE_PREFIX):
                entries.pop(key.removeprefix(SAMPLE_PREFIX).split()[0], None)
        self.entries, self.record = entries, entries.get(_RECORD)

    def sample(self, arguments: tuple[Any, ...], seed: int) -> str | None:
        """Returns the saved answer to a sampled generation request, or None."""
        return self.entries.get(_sample_key(arguments, seed))

    def save(
        self, request_type: str, answers: Iterable[tuple[tuple[Any, ...], Any, int | None]], record: RunRecord
    ) -> None:
        """Writes answers (arguments, answer, seed) and the record of all answers so far to disk, in one transaction."""
        entries = self.entries
        keys = {
            hash_args(request_type, arguments) if seed is None else _sample_key(arguments, seed): answer
            for arguments, answer, seed in answers
        }
        rows = [(entries.encode_key(key), entries.encode(value)) for key, value in {**keys, _RECORD: record}.items()]
        # lm-eval's dictionary commits each entry by itself, and a killed run must keep answers and record, or neither.
        with closing(sqlite3.connect(entries.filename, timeout=60)) as file, file:
            file.executemany(f'REPLACE INTO "{entries.tablename}" (key, value) VALUES (?, ?)', rows)


def _sample_key(arguments: tuple[Any, ...], seed: int) -> str:
    return f"{SAMPLE_PREFIX}{hash_args('generate_until', arguments)} {seed}"
