"""What is decided before an operator is reached: functions of `torch` and `torch.cuda`, and the guard of devices."""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.pretended_gpu.attention import attend
from tests.pretended_gpu.graphs import Capture, Graph
from tests.pretended_gpu.tensors import GpuTensor, with_number

if TYPE_CHECKING:
    from tests.pretended_gpu.device import PretendedGpu


_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
# All others pass unchanged where no device is named.
_SEEN = frozenset([*_INDEXING, torch.nn.functional.scaled_dot_product_attention, torch.Tensor.to])


class Calls(TorchFunctionMode):
    """Calls that torch would answer below the dispatcher, where a pretended GPU sees nothing."""

    def __init__(self, gpu: "PretendedGpu") -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not kwargs and called not in _SEEN:
            return called(*args)
        kwargs = kwargs or {}
        if called is torch.nn.functional.scaled_dot_product_attention and isinstance(args[0], GpuTensor):
            return attend(self.gpu, *args, **kwargs)
        if called in _INDEXING and isinstance(args[0], GpuTensor):
            args = (args[0], self._index(args[1], args[0].device), *args[2:])
        elif called is torch.Tensor.to:
            args = tuple(with_number(each) if isinstance(each, (str, torch.device)) else each for each in args)
        if _is_gpu(kwargs.get("device")):
            kwargs = kwargs | {"device": with_number(kwargs["device"])}
            if called in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor):
                return called(*args, **kwargs | {"device": "cpu"}).to(kwargs["device"])
        return called(*args, **kwargs)

    def _index(self, index: Any, device: torch.device) -> Any:
        """Lists become tensors, which torch copies to the device."""
        if isinstance(index, tuple):
            return tuple(self._index(each, device) for each in index)
        return torch.tensor(index).to(device) if isinstance(index, list) else index


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@contextlib.contextmanager
def functions_of_cuda(gpu: "PretendedGpu") -> Iterator[None]:
    """`torch.cuda` with such a GPU."""
    facts = SimpleNamespace(
        name="pretended", total_memory=gpu.n_bytes, major=9, minor=0, multi_processor_count=132, uuid="0"
    )
    functions: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: gpu.n_devices,
        "current_device": lambda: 0,
        "device_of": lambda _: contextlib.nullcontext(),
        "get_device_name": lambda *_: facts.name,
        "get_device_capability": lambda *_: (facts.major, facts.minor),
        "get_device_properties": lambda *_: facts,
        "current_stream": lambda *_: gpu.stream,
        "set_stream": lambda stream: setattr(gpu, "stream", stream),
        "synchronize": lambda *_: gpu.transfers.finish(),
        "CUDAGraph": functools.partial(Graph, gpu),
        "graph": functools.partial(Capture, gpu),
        "is_current_stream_capturing": lambda: gpu.graph is not None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (gpu.n_bytes - gpu.report.live, gpu.n_bytes),
        "memory_allocated": lambda *_: gpu.report.live,
        "memory_reserved": lambda *_: gpu.report.live,
        "max_memory_allocated": lambda *_: gpu.report.peak,
        "reset_peak_memory_stats": lambda *_: setattr(gpu.report, "peak", gpu.report.live),
    }
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        yield


# The array of guards in c10, indexed by c10::DeviceType; these two numbers are part of torch's serialisation format.
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
CPU, CUDA = 0, 1


@contextlib.contextmanager
def guard_that_does_nothing() -> Iterator[None]:
    """Lends CUDA the CPU's guard, which does nothing, as indexing asks for one; on leaving, puts back what was there.

    Checked with torch 2.13 on Linux; torch 2.10 and later keep the registry under the same name. Builds for Windows and
    macOS, and versions that renamed it, end here with an error of ctypes.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), REGISTRY)
    before = guards[CUDA]
    guards[CUDA] = guards[CPU]
    try:
        yield
    finally:
        guards[CUDA] = before
