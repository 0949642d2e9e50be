"""Tensors that say they are on a GPU, their bytes there, and copies to them that nobody waits for."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tests.pretended_gpu.report import PretendedGpuError, Report

_ROUNDED_TO = 512  # bytes, as the allocator of CUDA does


class Memory:
    """The live storages, each with the number of tensors that share it."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.owners: Counter[int] = Counter()

    def born(self, tensor: "GpuTensor") -> None:
        """A tensor was made, perhaps on the storage of others."""
        number = storage_of(tensor.numbers)
        if not self.is_live(tensor.numbers):
            self.report.allocated(_rounded(tensor.numbers))
        self.owners[number] += 1

    def died(self, values: Tensor) -> None:
        """A tensor is gone; with the last one its storage is."""
        number = storage_of(values)
        self.owners[number] -= 1
        if not self.owners[number]:
            del self.owners[number]
            self.report.allocated(-_rounded(values))

    def is_live(self, values: Tensor) -> bool:
        """Whether a tensor still holds this storage."""
        return storage_of(values) in self.owners


class GpuTensor(Tensor):
    """A tensor that says `cuda:N`. Its `numbers` are on the CPU, or on the meta device."""

    numbers: Tensor
    memory: Memory | None
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, values: Tensor, device: torch.device, memory: Memory | None = None) -> "GpuTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=device,
        )
        made.numbers, made.memory = values, memory
        if memory is not None:
            memory.born(made)
        return made

    def __del__(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None:
            memory.died(self.numbers)

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Raises as torch does."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def tolist(self) -> Any:
        """As of a GPU's tensor, which is copied first."""
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        """Of the values; it tells apart memory, as PyTorch's and transformers' own uses of it do."""
        return self.numbers.data_ptr()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Only reached where no pretended GPU is in use: that one sees every operator first."""
        raise PretendedGpuError(f"{operator} on a tensor of a pretended GPU, outside its `with` block")


def _rounded(values: Tensor) -> int:
    return -(-values.untyped_storage().nbytes() // _ROUNDED_TO) * _ROUNDED_TO


# Most arguments of operators are of these types, which hold no tensor.
_PLAIN = frozenset([int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format])


def storage_of(values: Tensor) -> int:
    """What identifies the memory of a tensor as long as it lives."""
    return values.untyped_storage()._cdata


def bytes_of(values: Tensor) -> Tensor:
    """All bytes of a tensor's memory, as a tensor of uint8 in place."""
    return torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage())


def tensors_in(*nests: Any) -> list[Tensor]:
    """Tensors among arguments, and in the sequences and mappings among these."""
    found: list[Tensor] = []
    _collect(nests, found)
    return found


def _collect(nests: Iterable[Any], found: list[Tensor]) -> None:
    for nest in nests:
        if type(nest) in _PLAIN:
            continue
        if isinstance(nest, Tensor):
            found.append(nest)
        elif isinstance(nest, (list, tuple)):
            _collect(nest, found)
        elif isinstance(nest, dict):
            _collect(nest.values(), found)


def mapped(nest: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same arguments with every tensor changed."""
    if type(nest) in _PLAIN:
        return nest
    if isinstance(nest, Tensor):
        return change(nest)
    if isinstance(nest, dict):
        return {name: mapped(each, change) for name, each in nest.items()}
    if type(nest) in (list, tuple):
        return type(nest)([mapped(each, change) for each in nest])
    return nest


def numbers_of(tensor: Tensor) -> Tensor:
    """Its numbers, wherever it says it is."""
    return tensor.numbers if isinstance(tensor, GpuTensor) else tensor


def with_number(device: Any) -> torch.device:
    """`cuda` is `cuda:0`; the guard in use would not know the number."""
    device = torch.device(device)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


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
