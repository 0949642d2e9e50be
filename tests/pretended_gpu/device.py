"""The pretended GPU: sees every operator, computes it on the CPU, and notes what CUDA would make of it."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pretended_gpu.calls import Calls, functions_of_cuda, guard_that_does_nothing
from tests.pretended_gpu.graphs import Graph
from tests.pretended_gpu.operators import Operator, is_index, is_number, operator_of, run_unknown, waits
from tests.pretended_gpu.report import PretendedGpuError, Report, place
from tests.pretended_gpu.tensors import GpuTensor, Memory, Transfers, mapped, numbers_of, tensors_in, with_number

GPU = torch.device("cuda", 0)


class PretendedGpu(TorchDispatchMode):
    """GPUs of `n_devices` with `n_bytes` of memory each, in use inside a `with` block.

    Inside it, `torch.cuda` says that they are there, tensors can be made on `cuda` and moved there, and `report` counts
    what they would cost. What CUDA refuses raises PretendedGpuError. Random numbers are the CPU's.
    """

    def __init__(self, *, n_devices: int = 1, n_bytes: int = 150_000_000_000) -> None:
        super().__init__()
        self.n_devices, self.n_bytes = n_devices, n_bytes
        self.report = Report()
        self.memory = Memory(self.report)
        self.transfers = Transfers()
        self.graph: Graph | None = None  # that is being recorded
        self.stream = "default"  # the current one
        self.zone = "outside"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(guard_that_does_nothing())
            stack.enter_context(functions_of_cuda(self))
            super().__enter__()
            stack.callback(super().__exit__, None, None, None)
            stack.enter_context(Calls(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def move(self, model: Any, *, device_of: Callable[[str], torch.device] = lambda _: GPU) -> Any:
        """Puts a model's parameters and buffers onto the GPU, in place; `device_of` takes a module's path.

        From then on kernels inside its forward count for the zone "model".
        """
        moved: dict[int, nn.Parameter] = {}
        for path, module in model.named_modules():
            device = device_of(path)
            for name, parameter in module._parameters.items():
                if parameter is None or isinstance(parameter, GpuTensor):
                    continue
                if id(parameter) not in moved:  # some are shared
                    values = GpuTensor(parameter.data, device, self.memory)
                    moved[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
                module._parameters[name] = moved[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None and not isinstance(buffer, GpuTensor):
                    module._buffers[name] = GpuTensor(buffer, device, self.memory)
        model.register_forward_pre_hook(lambda *_: setattr(self, "zone", "model"))
        model.register_forward_hook(lambda *_: setattr(self, "zone", "outside"), always_call=True)
        return model

    # What the parts of this package ask

    def wait(self, reason: str) -> None:
        """The host waits until the device is done. Raises PretendedGpuError while a graph is recorded."""
        if self.graph is not None:
            raise PretendedGpuError(
                f"CUDA error: operation not permitted when stream is capturing ({reason} at {place()})"
            )
        self.report.waits[f"{reason} at {place()}"] += 1
        self.transfers.finish()

    def launched(self, n: int = 1) -> None:
        """Counts kernels."""
        self.report.kernels[self.zone] += n

    def unused(self, shape: Sequence[int], like: Tensor) -> GpuTensor:
        """Memory of this shape that a kernel takes beside its result."""
        values = torch.empty(tuple(shape), dtype=like.dtype, device="meta")
        return GpuTensor(values, like.device, self.memory)

    def check_devices(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Raises PretendedGpuError for tensors of several devices."""
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            of_each = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
            raise PretendedGpuError(f"Expected all tensors to be on the same device: {name} of {of_each} at {place()}")

    # Operators

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled on a pretended GPU, and to say so for each operator takes as long as most of them."""
        return False

    def __torch_dispatch__(self, aten: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in(args, kwargs)
        on_gpu = [tensor for tensor in tensors if isinstance(tensor, GpuTensor)]
        device = None if kwargs.get("device") is None else with_number(kwargs["device"])
        if not on_gpu and (device is None or device.type != "cuda"):
            return self._on_host(aten, args, kwargs)
        operator = operator_of(aten)
        if operator.name == "_to_copy":
            return self._to(operator, args[0], kwargs)
        if on_gpu:
            self._check_operands(operator, args, tensors)
        if waits(operator, args):
            self.wait(operator.name)
        elif operator.launches:
            self.launched()
        return self.compute(operator, args, kwargs, device or on_gpu[0].device, on_gpu)

    def _check_operands(self, operator: Operator, args: Any, tensors: Sequence[Tensor]) -> None:
        together: list[Tensor] = []
        for tensor in tensors:
            if not isinstance(tensor, GpuTensor) and is_index(operator, tensor, args):
                self._blocks("an index of the host")
            elif not is_number(operator, tensor):
                together.append(tensor)
        self.check_devices(operator.name, together)

    def compute(
        self,
        operator: Operator,
        args: Any,
        kwargs: dict[str, Any],
        device: torch.device,
        on_gpu: Sequence[GpuTensor],
    ) -> Any:
        """Runs an operator on the numbers of its arguments, `on_gpu` among them; its results are on `device`."""
        args, kwargs = mapped(args, numbers_of), mapped(kwargs, numbers_of)
        unknown = any(tensor.numbers.is_meta for tensor in on_gpu)
        kwargs.pop("pin_memory", None)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta" if unknown else "cpu")
        if operator.in_place and self.graph is not None:
            self.graph.will_write(args[0])
        with torch._C.DisableTorchFunction():
            made = run_unknown(operator, args, kwargs) if unknown else operator.run(*args, **kwargs)
        if self.graph is not None:
            self.graph.note(operator.run, args, kwargs, made)
        given = {id(tensor.numbers): tensor for tensor in on_gpu} if operator.in_place else {}
        return mapped(
            made,
            lambda values: given[id(values)] if id(values) in given else GpuTensor(values, device, self.memory),
        )

    def _on_host(self, aten: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        is_pinned = kwargs.pop("pin_memory", False)
        made = aten(*args, **kwargs)
        if is_pinned:
            if self.graph is not None:
                raise PretendedGpuError(f"pinned memory is taken while a graph is recorded, at {place()}")
            self.transfers.pin(made)
        return made

    # Copies

    def _to(self, operator: Operator, source: Tensor, kwargs: dict[str, Any]) -> Tensor:
        device = source.device if kwargs.get("device") is None else with_number(kwargs["device"])
        others = {name: each for name, each in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
        if not isinstance(source, GpuTensor):
            self._from_host(source, is_waited_for=not kwargs.get("non_blocking"))
            return GpuTensor(operator.run(source, **others).clone(), device, self.memory)
        if device.type == "cuda":
            self.launched()
            self.report.copies_between += device != source.device
            return self.compute(operator, (source,), others, device, [source])
        self.wait(f"copy to {device.type}")
        values = torch.zeros_like(source.numbers, device="cpu") if source.numbers.is_meta else source.numbers
        return operator.run(values, **others).clone()

    def _from_host(self, source: Tensor, *, is_waited_for: bool) -> None:
        if self.graph is not None:
            raise PretendedGpuError(f"a copy from the host while a graph is recorded, at {place()}")
        if not is_waited_for and self.transfers.is_pinned(source):
            self.transfers.begin(source)
        else:
            self._blocks("a copy to the device")

    def _blocks(self, reason: str) -> None:
        if self.graph is not None:
            raise PretendedGpuError(f"{reason} while a graph is recorded, at {place()}")
        self.report.blocking_copies[f"{reason} at {place()}"] += 1
