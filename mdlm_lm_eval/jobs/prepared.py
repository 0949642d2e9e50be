"""Requests in general, answered here or by a server: their seeds, copies, order, and lm-eval's `--use_cache`."""

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import hash_args

from mdlm_lm_eval.decoding.canvas import repetitions, seed_of, seed_of_request
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from mdlm_lm_eval.record import Answer, RunRecord, TaskRecord

logger = logging.getLogger(__name__)
_MOST_UNKNOWN = 0.01  # share of a task's tokens
_UNKNOWN = "%s: %.1f%% of the tokens of its texts are unknown to the tokenizer; is it the model's own?"
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


@dataclass(kw_only=True)
class PreparedRequest:
    """One request that is ready to be answered.

    numbers: effective numbers, such as masks and steps; results contain the range of each.
    truncated: the number of prompt tokens that were cut off.
    text: the number of its text's tokens, and of those that are unknown, as `count_unknown` returns them.
    own_seed: the request's seed if repetitions have different answers; None if lm-eval's `--use_cache` may give all
        repetitions the same answer.
    exact: the exact answer to an audited request; None before it is decoded, and for other requests.
    """

    instance: Instance
    options: DecodingOptions | LikelihoodOptions
    numbers: Mapping[str, float]
    truncated: int
    text: Counter[str]
    own_seed: int | None = None
    exact: Answer | None = None

    def saved_sample(self, cache: RequestCache | None) -> str | None:
        """Returns the answer that an earlier run saved for the request's own seed, or None."""
        if cache is None or self.own_seed is None:
            return None
        return cache.sample(self.instance.args, self.own_seed)

    def add_to(
        self, record: RunRecord, request_type: str, cost: Mapping[str, float], answer: Answer | None = None
    ) -> TaskRecord:
        """Records an answered request, and returns the record of its task.

        The `answer` to an audited request is compared with the exact one.
        """
        name = task_of(self.instance)
        record.settings[request_type, self.options].add(name)
        task = record.tasks[name]
        task.requests += 1
        task.truncated_prompts += self.truncated > 0
        task.truncated_tokens += self.truncated
        task.text.update(self.text)
        task.cost.add(cost)
        for number, value in self.numbers.items():
            lowest, highest = task.ranges.get(number, (value, value))
            task.ranges[number] = (min(lowest, value), max(highest, value))
        if self.exact is not None and answer is not None:
            task.audit(self.instance.doc_id, answer, self.exact)
        return task


def task_of(instance: Instance) -> str:
    """Returns the name of a request's task. Tasks with a class of their own have a config in the place of the name."""
    name = instance.task_name
    return (name.get("task") if isinstance(name, dict) else name) or "no task"  # requests made in Python have none


def warn_of_unknown(texts: Iterable[tuple[str, Counter[str]]]) -> None:
    """Warns of each task whose texts have too many unknown tokens; `texts` are the tasks' names and counts."""
    counts: dict[str, Counter[str]] = {}
    for name, text in texts:
        counts.setdefault(name, Counter()).update(text)
    for name, count in counts.items():
        if count["unknown"] > _MOST_UNKNOWN * count["tokens"]:
            logger.warning(_UNKNOWN, name, 100 * count["unknown"] / count["tokens"])


def seeds_of(requests: Sequence[Instance], seeds: Sequence[int]) -> list[int]:
    """Returns a seed for each generation request, so that batches, order, processes and other tasks change no answer.

    It comes from the request's content. Equal requests of one document and task are repetitions (of a task with
    `repeats`), and each has a different seed.
    """
    pairs = list(zip(requests, seeds, strict=True))
    # Two documents may have the same text.
    counts = repetitions((task_of(one), one.doc_id, seed_of_request(seed, one.args)) for one, seed in pairs)
    return [seed_of_request(seed, one.args, count) for (one, seed), count in zip(pairs, counts, strict=True)]


def own_requests(requests: Sequence[Instance], world_size: int) -> tuple[list[Instance], list[int]]:
    """Drops lm-eval's padding copies.

    lm-eval repeats a process's last request until all processes have the same number of requests. Returns the requests
    without these copies, and for each given request the index of the one with its answer. Repetitions of a request
    follow each other.
    """
    n_copies, repeats = 0, (requests[-1].repeats or 1) if requests else 1
    if world_size > 1:
        n_copies = max(0, sum(instance is requests[-1] for instance in requests) - repeats)
    n_own = len(requests) - n_copies
    return list(requests[:n_own]), [*range(n_own), *(n_own - repeats + n % repeats for n in range(n_copies))]


def in_drawn_order(requests: Iterable[tuple[str, int]], label: str) -> dict[str, list[tuple[float, int]]]:
    """Puts the requests (task, seed) of each task into a random order, as (number in [0, 1), index in `requests`).

    The order depends on the seeds and on `label`, and not on batches or on the order in which requests come.
    """
    by_task: dict[str, list[tuple[int, int]]] = {}
    for index, (task, seed) in enumerate(requests):
        by_task.setdefault(task, []).append((seed_of(f"{label} {seed}"), index))
    return {task: [(digest / 2**63, index) for digest, index in sorted(of_task)] for task, of_task in by_task.items()}
