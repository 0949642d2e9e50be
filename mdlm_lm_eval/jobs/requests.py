"""A request as any job sees it, whoever answers it; repetitions and copies among requests, and a drawn order."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance

from mdlm_lm_eval.decoding.canvas import seed_of, seed_of_request
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.record import Answer, RunRecord, TaskRecord
from mdlm_lm_eval.request_cache import RequestCache
from mdlm_lm_eval.resolve import ResolvedRequest


def task_of(instance: Instance) -> str:
    """The name of a request's task. A task that is a class of its own has its config in the name's place."""
    name = instance.task_name
    return (name.get("task") if isinstance(name, dict) else name) or "no task"  # requests made by hand have none


@dataclass(kw_only=True)
class Job:
    """One request that is ready to be answered.

    numbers: its effective numbers, of which results give the range. truncated: prompt tokens that were cut off.
    own_seed: the seed of a request whose repetitions have answers of their own; None where lm-eval's `--use_cache`
        may give all repetitions one answer. exact: of an audited request, the exact answer once it is known.
    """

    instance: Instance
    options: DecodingOptions | LikelihoodOptions
    numbers: Mapping[str, float]
    truncated: int
    own_seed: int | None = None
    exact: Answer | None = None

    def saved_sample(self, cache: RequestCache | None) -> str | None:
        """The answer that an earlier run saved under the request's own seed, if there is one."""
        if cache is None or self.own_seed is None:
            return None
        return cache.sample(self.instance.args, self.own_seed)

    def add_to(
        self, record: RunRecord, request_type: str, cost: Mapping[str, float], answer: Answer | None = None
    ) -> TaskRecord:
        """Records an answered request; an audited one together with how its `answer` compares to the exact one."""
        task = record.add(
            task_of(self.instance),
            (request_type, self.options),
            cost=cost,
            numbers=self.numbers,
            truncated=self.truncated,
        )
        if self.exact is not None and answer is not None:
            task.audit(self.instance.doc_id, answer, self.exact)
        return task


def resolved(
    requests: Sequence[Instance], resolve: Callable[[Mapping[str, Any]], ResolvedRequest]
) -> list[ResolvedRequest]:
    """The options of each request; equal keyword arguments give the same object."""
    keys = [json.dumps(instance.args[1], default=str) for instance in requests]
    alike = {key: instance.args[1] for key, instance in zip(keys, requests, strict=True)}
    found = {key: resolve(gen_kwargs) for key, gen_kwargs in alike.items()}
    return [found[key] for key in keys]


def seeds_of(requests: Sequence[Instance], seeds: Sequence[int]) -> list[int]:
    """Seeds by content: the same request draws the same numbers in any batch, order and process.

    Equal requests of one document are repetitions (a task with `repeats`) and get seeds of their own.
    """
    seen: Counter[tuple[int | None, int]] = Counter()
    found = []
    for instance, seed in zip(requests, seeds, strict=True):
        key = instance.doc_id, seed_of_request(seed, instance.args)  # another document may have the same text
        found.append(seed_of_request(seed, instance.args, seen[key]))
        seen[key] += 1
    return found


def without_padding_copies(requests: Sequence[Instance], world_size: int) -> tuple[list[Instance], list[int]]:
    """Drops lm-eval's padding copies and maps requests to answers.

    lm-eval repeats a process's last request until the shares of all processes are equally long. Returned are the
    requests without these copies, and for each given request the index of the one that answers it; repetitions follow
    each other.
    """
    n_copies, repeats = 0, (requests[-1].repeats or 1) if requests else 1
    if world_size > 1:
        n_copies = max(0, sum(instance is requests[-1] for instance in requests) - repeats)
    n_own = len(requests) - n_copies
    return list(requests[:n_own]), [*range(n_own), *(n_own - repeats + n % repeats for n in range(n_copies))]


def in_drawn_order(requests: Iterable[tuple[str, int]], label: str) -> dict[str, list[tuple[float, int]]]:
    """For each task its requests (task, seed) in an order that their seeds draw, as (place in [0, 1), index).

    The order depends neither on batches nor on the order in which requests come. Another `label` draws another one.
    """
    by_task: dict[str, list[tuple[int, int]]] = {}
    for index, (task, seed) in enumerate(requests):
        by_task.setdefault(task, []).append((seed_of(f"{label} {seed}"), index))
    return {task: [(digest / 2**63, index) for digest, index in sorted(of_task)] for task, of_task in by_task.items()}
