"""Where a model runs."""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


def best_device() -> str:
    """The machine's accelerator, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def usable_device(device: str | None) -> str:
    """`device`, or the best one where none is named; lm-eval names cuda:0 whether there is a GPU or not."""
    if device is None or (device == "cuda:0" and not torch.cuda.is_available()):
        return best_device()
    return device


def share_cpu_among_processes() -> None:
    """Lets several processes (`torchrun`) find each other on a machine without an accelerator.

    Without ACCELERATE_USE_CPU accelerate sees no distributed run there, and every process would do all work.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and best_device() == "cpu":
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; to a GPU from pinned memory, so that nothing waits for the copy."""
    if device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values).to(device, non_blocking=True)


@dataclass
class Usage:
    """Wall time, and the most memory in use at once: allocated on all GPUs, or of the process where there is none."""

    seconds: float = 0.0
    peak_memory_bytes: int = 0


@contextmanager
def measured(device: torch.device) -> Iterator[Usage]:
    """Seconds and bytes that are used until the `with` block ends, filled in then.

    The process's memory is its highest since it began.
    """
    usage = Usage()
    gpus = range(torch.cuda.device_count()) if device.type == "cuda" else range(0)
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    started = time.perf_counter()
    try:
        yield usage
    finally:
        usage.seconds = time.perf_counter() - started
        usage.peak_memory_bytes = sum(map(torch.cuda.max_memory_allocated, gpus)) if gpus else _process_memory()


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


def _process_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, all others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
