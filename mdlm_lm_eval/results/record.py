"""What `--model mdlm` counts while it works: the effective numbers and the cost of each task's requests."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mdlm_lm_eval.results.audit import Audit
from mdlm_lm_eval.results.cost import TaskCost


@dataclass
class TaskRecord:
    """Numbers of one task's requests; a range is (smallest, largest). `forward_passes` are those of whole batches."""

    requests: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    forward_passes: int = 0
    truncated_prompts: int = 0
    truncated_tokens: int = 0
    cost: TaskCost = field(default_factory=TaskCost)
    audit: Audit = field(default_factory=Audit)

    def add(self, *, truncated: int, **values: int) -> None:
        """Counts one request with its effective values and the number of prompt tokens that were cut off."""
        self.requests += 1
        self.truncated_prompts += truncated > 0
        self.truncated_tokens += truncated
        for name, value in values.items():
            self._widen(name, value, value)

    def merge(self, other: "TaskRecord") -> None:
        """Adds what another process did for the same task."""
        self.requests += other.requests
        self.forward_passes += other.forward_passes
        self.truncated_prompts += other.truncated_prompts
        self.truncated_tokens += other.truncated_tokens
        self.cost.merge(other.cost)
        self.audit.merge(other.audit)
        for name, (smallest, largest) in other.ranges.items():
            self._widen(name, smallest, largest)

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "requests": self.requests,
            **{name: list(bounds) for name, bounds in self.ranges.items()},
            "forward_passes": self.forward_passes,
            "truncated_prompts": self.truncated_prompts,
            "truncated_tokens": self.truncated_tokens,
            "cost": self.cost.as_dict(),
            **({"audit": self.audit.as_dict()} if self.audit.requests else {}),
        }

    def _widen(self, name: str, smallest: int, largest: int) -> None:
        low, high = self.ranges.get(name, (smallest, largest))
        self.ranges[name] = (min(low, smallest), max(high, largest))


class RunRecord:
    """Records of all tasks in this process. A forward pass that serves requests of two tasks counts for both."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskRecord] = {}
        self.forward_passes = 0

    def task(self, name: str | None) -> TaskRecord:
        """The record of a task; requests that belong to none (made by hand) share one."""
        return self.tasks.setdefault(name or "no task", TaskRecord())

    def add_forward_passes(self, names: Iterable[str | None], passes: int) -> None:
        """Counts forward passes for every task that took part in them."""
        self.forward_passes += passes
        for name in set(names):
            self.task(name).forward_passes += passes


def merged(records: Iterable[RunRecord]) -> dict[str, dict[str, Any]]:
    """The tasks of all processes, by name."""
    together = RunRecord()
    for record in records:
        for name, task in record.tasks.items():
            together.task(name).merge(task)
    return {name: task.as_dict() for name, task in sorted(together.tasks.items())}
