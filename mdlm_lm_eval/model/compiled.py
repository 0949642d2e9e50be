"""CUDA graphs of a GPU's passes; and with `compile=true`, compiled layers."""

import functools
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from transformers import __version__ as transformers_version
from transformers.modeling_layers import GradientCheckpointingLayer

from mdlm_lm_eval.options import OptionError

# The argument of models and layers that takes a cache: transformers 5.24 renamed it.
CACHE = "cache" if Version(transformers_version) >= Version("5.24") else "past_key_values"
# The passes of a shape before its graph is captured: the first ones load and choose kernels, which a capture may not.
PASSES_BEFORE = 2
# More graphs, or graphs of larger passes, would take up much memory.
_MOST_TOKENS, _MOST_CAPTURED = 8192, 32
# Three times a fast host's time to launch a layer's kernels, and the rate of full passes on an H200.
_LAUNCH_SECONDS, _OPERATIONS_A_SECOND = 1e-3, 4e14
# Compiled versions of a layer: with and without a cache, a mask, several rows. More would be a sign of an error.
_MOST_COMPILED = 64


class NotCapturableError(Exception):
    """No CUDA graph can be captured of a model's passes; the message says why."""


def can_capture(model: nn.Module) -> bool:
    """Whether a model's passes may become CUDA graphs: it is on one GPU, and its code is transformers' own.

    Code that comes with a checkpoint may replace tensors that a graph would continue to read.
    """
    is_remote = model.config.to_dict().get("diffusion_family") == "remote"  # type: ignore[union-attr, operator]
    return is_on_one_device(model) and next(model.parameters()).is_cuda and not is_remote


def most_tokens(model: nn.Module) -> int:
    """The tokens of the largest pass that is worth a graph; the kernels of larger ones outlast their launches.

    It is about 800 for 8 billion parameters in 32 layers. Of a mixture's experts, stacked in one tensor [E, ...], those
    count that a token passes through.
    """
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    n_experts = getattr(text, "num_experts_per_tok", None) or 1
    weights = (
        parameter.numel() * (n_experts / len(parameter) if parameter.dim() == 3 else 1)
        for parameter in model.parameters()
    )
    return min(_MOST_TOKENS, int(text.num_hidden_layers * _LAUNCH_SECONDS * _OPERATIONS_A_SECOND / (2 * sum(weights))))


def is_on_one_device(model: nn.Module) -> bool:
    """Whether all of a model is on one device, and in one process."""
    devices = {parameter.device for parameter in model.parameters()}
    return len(devices) == 1 and (getattr(model, "tp_size", 1) or 1) == 1


def compile_layers(model: nn.Module, backend: Any = "inductor") -> None:
    """Compiles the repeated layers in place, once for all of them and for every batch size and canvas length.

    Layers share their code, so compiling all of them takes as long as one. Each layer is given its own part of the
    cache, as a layer index would force recompilation. Raises OptionError for a model whose layers are not transformers'
    own, or that is spread over devices. Layers raise it in their first pass if they cannot be compiled.
    """
    name, layers = type(model).__name__, [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise OptionError(f"compile must be false with {name}, whose layers are not transformers' own")
    if not is_on_one_device(model):
        raise OptionError(f"compile must be false with {name} on several devices")
    torch._dynamo.config.recompile_limit = _MOST_COMPILED
    for layer in layers:
        if isinstance(layer.forward, functools.partial):
            continue  # another denoiser of this model compiled it
        number = next((module.layer_idx for module in layer.modules() if hasattr(module, "layer_idx")), 0)
        # `fullgraph` raises an error if a part of the layer cannot be compiled.
        compiled = torch.compile(layer.forward, dynamic=True, fullgraph=True, backend=backend)
        layer.forward = functools.partial(_run_layer, layer.forward, compiled, number, name)


def _run_layer(
    plain: Callable[..., Any], compiled: Callable[..., Any], number: int, name: str, *args: Any, **kwargs: Any
) -> Any:
    cache = kwargs.get(CACHE)
    if cache is not None:
        kwargs[CACHE] = own = cache.layers[number]
        if not own.is_initialized:  # the first pass sizes the cache
            return plain(*args, **kwargs)
    try:
        return compiled(*args, **kwargs)
    except TorchDynamoException as error:
        raise OptionError(f"compile must be false with {name}, whose layers do not compile: {error}") from error


class Graphs:
    """CUDA graphs of the passes over one model, with one cache or none: a graph for every shape that comes again.

    A graph reads the tensors that it was captured with: a pass copies its inputs there, and finds its result in the
    same tensor each time.
    """

    def __init__(self) -> None:
        self.seen: Counter[Hashable] = Counter()
        self.captured: dict[Hashable, tuple[dict[str, Tensor], Callable[[], object], Tensor]] = {}

    def run(
        self,
        forward: Callable[..., Tensor],
        key: Hashable,
        inputs: Mapping[str, Tensor | None],
        of_model: "Graphs",
        *,
        compiles: bool = False,
    ) -> Tensor:
        """Returns `forward(**inputs)`, which the next pass overwrites.

        `key` stands for everything else that `forward` depends on; with `compiles`, it may compile layers. `of_model`
        are the model's graphs without a cache, which count how often a shape came with any cache: then a shape is
        captured when it comes with this cache for the second time. Raises NotCapturableError if a pass cannot be
        captured, for example because it waits for the device.
        """
        tensors = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        key = key, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())
        self.seen[key] += 1
        if of_model is not self:
            of_model.seen[key] += 1
        if of_model.seen[key] <= PASSES_BEFORE or self.seen[key] == 1:
            return forward(**inputs)
        if key not in self.captured:
            if len(self.captured) == _MOST_CAPTURED:
                del self.captured[next(iter(self.captured))]  # the oldest
            fixed = {name: tensor.clone() for name, tensor in tensors.items()}
            of_fixed = functools.partial(forward, **{**inputs, **fixed})
            if compiles:
                of_fixed()  # a capture may not compile, and a new cache's first pass runs layers as they are
            self.captured[key] = fixed, *capture(of_fixed)
        fixed, replay, result = self.captured[key]
        for name, tensor in tensors.items():
            fixed[name].copy_(tensor)
        replay()
        return result


def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Captures `run` as a CUDA graph; returns the function that replays it, and the tensor with its result.

    Raises NotCapturableError, after which the device is as it was.
    """
    device, stream = torch.cuda.current_device(), torch.cuda.current_stream()
    graph, pool = torch.cuda.CUDAGraph(), _keeper(device).pool()
    try:
        with _capturing(graph, pool=pool):
            result = run()
    except RuntimeError as error:
        first = error.__context__ or error  # the end of a failed capture raises another error
        _restore(device, stream, pool)
        if isinstance(first, torch.OutOfMemoryError):
            raise first from None
        raise NotCapturableError(f"no CUDA graph can be captured of this pass ({first})") from error
    return graph.replay, result


@contextmanager
def _capturing(graph: Any, **arguments: Any) -> Iterator[None]:
    """Inside the block, this thread's kernels go into `graph`; other threads may use the device, as NCCL's do."""
    was_enabled = gc.isenabled()
    gc.disable()  # a collection may destroy graphs of old caches, which ends a capture
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local", **arguments):
            yield
    finally:
        if was_enabled:
            gc.enable()


def _restore(device: int, stream: Any, pool: Any) -> None:
    """Ends what a failed capture leaves behind: another stream, memory that goes to its pool, no random numbers."""
    torch.cuda.set_stream(stream)
    with suppress(RuntimeError):  # it may have ended
        torch._C._cuda_endAllocateToPool(device, pool)
    _keeper.cache_clear()
    _keeper(device)  # random numbers can be drawn again after a capture that succeeds


@functools.cache
def _keeper(device: int) -> Any:
    """A graph that keeps the memory pool alive. All graphs share the pool, as they run one after the other."""
    keeper = torch.cuda.CUDAGraph()
    with _capturing(keeper):
        torch.zeros(1, device=f"cuda:{device}")
    return keeper
