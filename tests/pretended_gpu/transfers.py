"""Copies between host and device that nobody waits for, and the events that say when they are done."""

import weakref
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.pretended_gpu.report import PretendedGpuError, Report
from tests.pretended_gpu.tensors import bytes_of, storage_of

# What memory holds that a copy has not reached, or that nobody owns any more.
GARBAGE = 0x55


class Transfer(NamedTuple):
    """A copy on its way: pinned memory of the host, and the numbers that are copied from or to it."""

    on_host: Tensor
    values: Tensor
    goes_down: bool


class Transfers:
    """The copies of one stream, in their order. Those from the device arrive when the host waits for them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.pinned: set[int] = set()
        self.under_way: deque[Transfer] = deque()
        self.n_started = self.n_done = 0

    def pin(self, values: Tensor) -> None:
        """From now on its memory is pinned, as long as the tensor lives."""
        number = storage_of(values)
        self.pinned.add(number)
        weakref.finalize(values, self.pinned.discard, number)

    def is_pinned(self, values: Tensor) -> bool:
        """Whether this is pinned memory."""
        return storage_of(values) in self.pinned

    def down(self, target: Tensor, values: Tensor) -> None:
        """From the device to pinned memory, which holds garbage until then."""
        self.report.copies_down += 1
        arriving = torch.zeros_like(target) if values.is_meta else values.detach().clone()
        bytes_of(target).fill_(GARBAGE)
        self._start(Transfer(target, arriving, goes_down=True))

    def up(self, source: Tensor) -> None:
        """From pinned memory to the device. That memory must stay as it is until then."""
        self.report.copies_up += 1
        self._start(Transfer(source, source.clone(), goes_down=False))

    def _start(self, transfer: Transfer) -> None:
        self.under_way.append(transfer)
        self.n_started += 1

    def finish(self, until: int | None = None) -> None:
        """All copies are done, or the first `until`. Raises PretendedGpuError where pinned memory changed meanwhile."""
        while self.n_done < (self.n_started if until is None else until):
            transfer = self.under_way.popleft()
            self.n_done += 1
            if transfer.goes_down:
                transfer.on_host.copy_(transfer.values)
            elif not torch.equal(bytes_of(transfer.on_host), bytes_of(transfer.values)):
                raise PretendedGpuError("pinned memory was overwritten before its copy to the device was done")


class Event:
    """`torch.cuda.Event`: stands for the copies that had been started when it was recorded."""

    def __init__(self, transfers: Transfers, *_: Any, **__: Any) -> None:
        self.transfers = transfers
        self.n_started = 0

    def record(self, *_: Any) -> None:
        """Begins to stand for what has been started so far."""
        self.n_started = self.transfers.n_started

    def synchronize(self) -> None:
        """Waits for these copies, and for no later one."""
        self.transfers.report.events += 1
        self.transfers.finish(self.n_started)

    def query(self) -> bool:
        """Whether these copies are done."""
        return self.n_started <= self.transfers.n_done
