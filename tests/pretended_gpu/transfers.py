"""Copies to the device that nobody waits for, from pinned memory, which must stay as it is until they are done."""

import weakref

import torch
from torch import Tensor

from tests.pretended_gpu.report import PretendedGpuError
from tests.pretended_gpu.tensors import bytes_of, storage_of


class Transfers:
    """The copies of one stream that may still run: pinned memory, and its numbers when they began."""

    def __init__(self) -> None:
        self.pinned: set[int] = set()
        self.under_way: list[tuple[Tensor, Tensor]] = []

    def pin(self, values: Tensor) -> None:
        """From now on its memory is pinned, as long as the tensor lives."""
        number = storage_of(values)
        self.pinned.add(number)
        weakref.finalize(values, self.pinned.discard, number)

    def is_pinned(self, values: Tensor) -> bool:
        """Whether this is pinned memory."""
        return storage_of(values) in self.pinned

    def begin(self, source: Tensor) -> None:
        """A copy from pinned memory begins."""
        self.under_way.append((source, source.clone()))

    def finish(self) -> None:
        """All copies are done. Raises PretendedGpuError where pinned memory changed meanwhile."""
        while self.under_way:
            source, begun = self.under_way.pop()
            if not torch.equal(bytes_of(source), bytes_of(begun)):
                raise PretendedGpuError("pinned memory was overwritten before its copy to the device was done")
