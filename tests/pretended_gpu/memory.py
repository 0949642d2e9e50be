"""Bytes on a pretended GPU: those of tensors that are alive, as the allocator of CUDA rounds them."""

from typing import TYPE_CHECKING

from torch import Tensor

from tests.pretended_gpu.report import Report

if TYPE_CHECKING:
    from tests.pretended_gpu.tensors import GpuTensor

_ROUNDED_TO = 512


class Memory:
    """The live storages, each with the number of tensors that share it.

    `watched` is a list while a graph is recorded, which notes the storages that are given back meanwhile.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.owners: dict[int, int] = {}

    def born(self, tensor: "GpuTensor") -> None:
        """A tensor was made, perhaps on the storage of others."""
        storage = tensor.numbers.untyped_storage()
        number = storage._cdata
        if number not in self.owners:
            self.owners[number] = 0
            self.report.allocated(_rounded(storage.nbytes()))
        self.owners[number] += 1

    def died(self, values: Tensor) -> None:
        """A tensor is gone; with the last one its storage is."""
        storage = values.untyped_storage()
        number = storage._cdata
        self.owners[number] -= 1
        if not self.owners[number]:
            del self.owners[number]
            self.report.allocated(-_rounded(storage.nbytes()))

    def is_live(self, values: Tensor) -> bool:
        """Whether a tensor still holds this storage."""
        return values.untyped_storage()._cdata in self.owners


def _rounded(n_bytes: int) -> int:
    return -(-n_bytes // _ROUNDED_TO) * _ROUNDED_TO
