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

from mdlm_lm_eval.options import OptionError

LM_EVAL_DEFAULT = "cuda:0"  # of `lm_eval --device`, whether there is a GPU or not


def best_device() -> str:
    """The machine's accelerator, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def usable_device(device: str | None) -> str:
    """`device`, or the best one where none is named, as lm-eval does not with its default of a GPU.

    Raises OptionError for a device that this machine does not have.
    """
    if device is None or (device == LM_EVAL_DEFAULT and not torch.cuda.is_available()):
        return best_device()
    check_device(device)
    return device


def check_device(device: str | torch.device | None) -> None:
    """Raises OptionError for a device that this machine does not have."""
    try:
        found = torch.empty(0, device=device).device
        # torch knows a device without memory, and takes cpu:99 for cpu.
        is_here = found.type != "meta" and (found.type != "cpu" or str(device) in ("None", "cpu", "cpu:0"))
    except (RuntimeError, AssertionError, TypeError):
        is_here = False
    if not is_here:
        devices = " or ".join(sorted({best_device(), "cpu"}))
        raise OptionError(f"device={device} is not on this machine; it must be {devices}")


def share_cpu_among_processes() -> None:
    """Lets several processes (`torchrun`) find each other on a machine without an accelerator.

    accelerate takes the CPU for a distributed run only where it is told to; otherwise every process would do all work.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and best_device() == "cpu":
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


@dataclass
class Usage:
    """Wall time, and the most memory in use at once: allocated on all GPUs, or of the process where there is none."""

    seconds: float = 0.0
    peak_memory_bytes: int = 0


@contextmanager
def measured(device: torch.device) -> Iterator[Usage]:
    """What is used until the block ends, told then. The process's memory is its highest since it began."""
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
