"""A device guard for CUDA in builds of torch that have none, or whose own asks the driver."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# The array of guards in c10, indexed by c10::DeviceType; these two numbers are part of torch's serialisation format.
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
CPU, CUDA = 0, 1


@contextmanager
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
