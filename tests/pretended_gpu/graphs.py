"""CUDA graphs: the kernels of a pass with their tensors, run again by a replay whatever Python has moved on to."""

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tests.pretended_gpu.report import PretendedGpuError
from tests.pretended_gpu.tensors import bytes_of, storage_of, tensors_in

if TYPE_CHECKING:
    from tests.pretended_gpu.device import PretendedGpu


# What memory holds that nobody owns any more.
GARBAGE = 0x55


class Kernel(NamedTuple):
    """A launch that was recorded. `made` are its results, None where they lie in memory that it was given."""

    run: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    made: list[Tensor | None]


class Graph:
    """`torch.cuda.CUDAGraph`.

    own: a tensor of each storage that the graph made. before: what other storages held that it has written to. lost:
    own storages that no tensor held when the graph was complete, which CUDA gives to the next graph.
    """

    def __init__(self, gpu: "PretendedGpu") -> None:
        self.gpu = gpu
        self.kernels: list[Kernel] = []
        self.own: dict[int, Tensor] = {}
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.lost: list[Tensor] = []

    def pool(self) -> tuple[int, int]:
        """Its memory, which other graphs may use."""
        return (0, 1)

    def note(self, run: Callable[..., Any], args: Any, kwargs: dict[str, Any], made: Any) -> None:
        """Records a launch."""
        given = {storage_of(tensor) for tensor in tensors_in(args, kwargs)}
        results = list(tensors_in(made))
        for tensor in results:
            if storage_of(tensor) not in given:
                self.own.setdefault(storage_of(tensor), tensor)
        new = [None if storage_of(tensor) in given else tensor for tensor in results]
        self.kernels.append(Kernel(run, args, kwargs, new))

    def will_write(self, target: Tensor) -> None:
        """Keeps what a storage from outside holds, as nothing has run when the graph is complete."""
        number = storage_of(target)
        if number not in self.own and number not in self.before and not target.is_meta:
            everything = bytes_of(target)
            self.before[number] = everything, everything.clone()

    def complete(self) -> None:
        """Undoes what recording has computed: CUDA records without running anything."""
        for everything, copy in self.before.values():
            everything.copy_(copy)
        self.before.clear()
        for tensor in self.own.values():
            _spoil(tensor)
        self.lost = [tensor for tensor in self.own.values() if not self.gpu.memory.is_live(tensor)]

    def replay(self) -> None:
        """Runs the kernels on the tensors that they were recorded with; the results go where they were."""
        self.gpu.report.replayed += 1
        with torch._C._DisableTorchDispatch():
            for kernel in self.kernels:
                again = tensors_in(kernel.run(*kernel.args, **kernel.kwargs))
                for old, new in zip(kernel.made, again, strict=True):
                    if old is not None and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            for tensor in self.lost:
                _spoil(tensor)


class Capture:
    """`torch.cuda.graph`: inside the block, kernels go into the graph."""

    def __init__(self, gpu: "PretendedGpu", graph: Graph, pool: object = None, **_: Any) -> None:
        self.gpu, self.graph = gpu, graph

    def __enter__(self) -> None:
        if self.gpu.graph is not None:
            raise PretendedGpuError("a graph is being recorded already")
        if gc.isenabled():
            raise PretendedGpuError("the garbage collector may destroy other graphs, which ends the recording")
        self.gpu.transfers.finish()  # as torch.cuda.graph synchronises first
        self.gpu.report.captured += 1
        self.gpu.graph, self.gpu.stream = self.graph, "of the recording"

    def __exit__(self, kind: object, *_: object) -> None:
        self.gpu.graph = None
        if kind is None:  # the stream of a recording that failed stays
            self.gpu.stream = "default"
        with torch._C._DisableTorchDispatch():
            self.graph.complete()


def _spoil(tensor: Tensor) -> None:
    if tensor.numel() and not tensor.is_meta:
        bytes_of(tensor).fill_(GARBAGE)
