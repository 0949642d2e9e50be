"""The devices that a model runs on: their choice, shapes, copies, memory and time."""

import functools
import os
import platform
import resource
import sys
import time

import torch
from torch import Tensor


def best_device() -> str:
    """The machine's accelerator, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def usable_device(device: str | None) -> str:
    """`device`, or the best one if it is None or a GPU that is not there, as lm-eval always names cuda:0."""
    if device is None or (device == "cuda:0" and not torch.cuda.is_available()):
        return best_device()
    return device


def share_cpu_among_processes() -> None:
    """Makes several processes (`torchrun`) share the work on a machine without an accelerator.

    Without ACCELERATE_USE_CPU, accelerate finds no distributed run there, and every process would do all the work.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and best_device() == "cpu":
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


# On a GPU, shapes are rounded up to multiples of these, so that attention kernels and graphs meet few of them.
KEYS, POSITIONS = 256, 64


def up_to_keys(n: int) -> int:
    """The next multiple of `KEYS`."""
    return -(-n // KEYS) * KEYS


def up_to_positions(n: int) -> int:
    """The next multiple of `POSITIONS`."""
    return -(-n // POSITIONS) * POSITIONS


@functools.lru_cache(maxsize=256)
def iota(n: int, device: torch.device) -> Tensor:
    """0 to n - 1 on a device, made once and shared: do not write to it."""
    return torch.arange(n, device=device)


def bucket(n: int, device: torch.device, *, least: int = 1) -> int:
    """`n`; on a GPU rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, so that graphs meet few shapes."""
    if device.type != "cuda":
        return n
    power = 1 << (n - 1).bit_length()
    return max(least, power * 3 // 4 if n <= power * 3 // 4 else power)


def positions_of(n: int, device: torch.device) -> int:
    """`n`; on a GPU rounded up to a multiple of POSITIONS."""
    return up_to_positions(n) if device.type == "cuda" else n


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor from the host to a device; to a GPU from pinned memory, so that nothing waits for the copy."""
    if device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values).to(device, non_blocking=True)


def free_bytes(device: torch.device) -> int | None:
    """The bytes of a GPU's memory that tensors can still take; None for other devices."""
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


class Meter:
    """Measures wall time and peak memory: the memory allocated on all GPUs, or without a GPU that of the process."""

    def __init__(self, device: torch.device) -> None:
        self._gpus = range(torch.cuda.device_count()) if device.type == "cuda" else range(0)
        self.read()

    def read(self) -> tuple[float, int]:
        """Seconds, and the peak memory in bytes, since the last reading; a process's peak is since its start."""
        now, peak = time.perf_counter(), sum(map(torch.cuda.max_memory_allocated, self._gpus))
        for gpu in self._gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        seconds, self._read_at = now - getattr(self, "_read_at", now), now
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, all others KiB
        return seconds, peak if self._gpus else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_name(device: torch.device) -> str:
    """The name of the hardware, from its driver or the platform."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
