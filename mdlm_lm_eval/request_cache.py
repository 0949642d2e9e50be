"""Keeps lm-eval's `--use_cache` honest: a cache file answers only for the model and the options that filled it, every
repetition of a sampled request with its own answer, and keeps the record of its answers."""

from collections.abc import Iterable, MutableMapping
from typing import Any

from lm_eval.api.model import hash_args

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.record import RunRecord

_FINGERPRINT, _RECORD = "mdlm_lm_eval.fingerprint", "mdlm_lm_eval.record"
SAMPLE_PREFIX = "mdlm_lm_eval.sample "


class RequestCache:
    """Answers as they are finished, in lm-eval's `entries` on disk.

    lm-eval's keys hold a request's arguments alone. Sampled requests (a seed is given) get keys of their own instead,
    or all repetitions of one would get one answer.
    """

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def sample(self, arguments: tuple[Any, ...], seed: int) -> str | None:
        """The answer to a sampled generation request, if there is one."""
        answer: str | None = self.entries.get(_sample_key(arguments, seed))
        return answer

    def save(
        self, request_type: str, answers: Iterable[tuple[tuple[Any, ...], Any, int | None]], record: RunRecord
    ) -> None:
        """Writes answers to requests (arguments, answer, seed), and the record of all so far, to disk at once."""
        keys = {
            hash_args(request_type, arguments) if seed is None else _sample_key(arguments, seed): answer
            for arguments, answer, seed in answers
        }
        self.entries.update(keys | {_RECORD: record})
        self.entries.commit()

    def resume(self) -> RunRecord | None:
        """The record of the answers that the cache holds.

        Forgets what lm-eval kept of sampled requests when a run ended, so that it asks for them again, one by one.
        """
        for key in list(self.entries):
            if key.startswith(SAMPLE_PREFIX):
                self.entries.pop(key.removeprefix(SAMPLE_PREFIX).split()[0], None)
        record: RunRecord | None = self.entries.get(_RECORD)
        return record


def _sample_key(arguments: tuple[Any, ...], seed: int) -> str:
    return f"{SAMPLE_PREFIX}{hash_args('generate_until', arguments)} {seed}"


def claim_cache(cache: MutableMapping[str, Any], fingerprint: dict[str, Any], *, path: str) -> None:
    """Marks an empty cache as filled by `fingerprint`; refuses one that something else filled.

    lm-eval's keys hold the prompt and the request's options alone, so such a cache would answer for n_masks=200 what it
    computed for n_masks=1. Raises OptionError naming what differs.
    """
    wanted = {name: repr(value) for name, value in fingerprint.items()}
    if len(cache) == 0:
        cache[_FINGERPRINT] = wanted
    found = cache.get(_FINGERPRINT)
    differences = [
        f"{name} was {found.get(name, 'not set')} and is {wanted.get(name, 'not set')}"
        for name in sorted((found or {}).keys() | wanted.keys())
        if found is not None and found.get(name) != wanted.get(name)
    ]
    if found is None or differences:
        filled = "was not filled by --model mdlm with this package"
        if differences:
            filled = f"was filled with another model or other options ({'; '.join(differences)})"
        raise OptionError(
            f"use_cache: {path} {filled}; name a new path, or a cache of a run with the same model and options"
        )
