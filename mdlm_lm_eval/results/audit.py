"""`cache_audit`: which requests are decoded exactly as well, and what came of it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from mdlm_lm_eval.results.cost import TaskCost


class Answer(NamedTuple):
    """What came back for a request."""

    string: str
    token_ids: Sequence[int]


@dataclass(frozen=True)
class AuditedRequest:
    """One request that was decoded both ways.

    exact: the exact answer, None where both are the same string.
    first_difference: the first token in which the answers differ, counted from 0; None where the strings agree.
    """

    doc_id: int | None
    exact: str | None
    first_difference: int | None


@dataclass
class Audit:
    """All audited requests of one task, and what decoding them exactly took."""

    requests: list[AuditedRequest] = field(default_factory=list)
    exact_cost: TaskCost = field(default_factory=TaskCost)

    def merge(self, other: "Audit") -> None:
        """Adds what another process did for the same task."""
        self.requests += other.requests
        self.exact_cost.merge(other.exact_cost)

    def as_dict(self) -> dict[str, Any]:
        """For the results file. `exact_answers` has every audited document; its answer only where the two differ."""
        differences = [one.first_difference for one in self.requests if one.first_difference is not None]
        where = {"smallest": min(differences), "median": median(differences)} if differences else None
        return {
            "requests": len(self.requests),
            "same_strings": sum(one.exact is None for one in self.requests),
            "first_differing_token": where,
            "exact_cost": self.exact_cost.as_dict(),
            "exact_answers": [
                {"doc_id": one.doc_id} | ({} if one.exact is None else {"exact": one.exact})
                for one in sorted(self.requests, key=lambda one: -1 if one.doc_id is None else one.doc_id)
            ],
        }


def audited_request(doc_id: int | None, cached: Answer, exact: Answer) -> AuditedRequest:
    """Compares two answers. Tokens count only where the strings differ: what is still written behind a stop string is
    nobody's answer.
    """
    if cached.string == exact.string:
        return AuditedRequest(doc_id, None, None)
    pairs = enumerate(zip(cached.token_ids, exact.token_ids, strict=False))
    shorter = min(len(cached.token_ids), len(exact.token_ids))
    return AuditedRequest(doc_id, exact.string, next((n for n, (one, other) in pairs if one != other), shorter))


def chosen_for_audit(
    requests: Sequence[tuple[str, int]], cache_audit: float, *, already: Mapping[str, int], part: tuple[int, int]
) -> set[int]:
    """Indices of the requests (task, seed) that are audited: told by their seeds, not by batches or order.

    Up to 1, `cache_audit` is the share of requests. Above, it is their number in each task, of which process n of m
    (`part`) takes its part and those that were audited `already` (task -> requests) are left out.
    """
    places = [_place(seed) for _, seed in requests]
    if cache_audit <= 1:
        return {n for n, place in enumerate(places) if place < cache_audit}
    process, processes = part
    of_process = int(cache_audit) // processes + (process < int(cache_audit) % processes)
    chosen: set[int] = set()
    for task in {task for task, _ in requests}:
        of_task = sorted((n for n, one in enumerate(requests) if one[0] == task), key=places.__getitem__)
        chosen |= set(of_task[: max(0, of_process - already.get(task, 0))])
    return chosen


def _place(seed: int) -> float:
    """A number in [0, 1), the same for a request in any run."""
    return int.from_bytes(hashlib.sha256(f"cache_audit {seed}".encode()).digest()[:6], "big") / 2**48
