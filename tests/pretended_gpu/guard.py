"""A device guard for CUDA in builds of torch that have none, or whose own asks the driver."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# The array of guards in c10, indexed by c10::DeviceType; these two numbers are part of torch's serialisation format.
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
CPU, CUDA = 0, 1


class UnfitTorchError(RuntimeError):
    """This build of torch has no registry of guards where the pretended GPU expects it."""


@contextmanager
def guard_that_does_nothing() -> Iterator[None]:
    """Lends CUDA the CPU's guard, which does nothing, as indexing asks for one; on leaving, puts back what was there.

    Checked with torch 2.13 on Linux. torch 2.10 and later keep the registry under the same name. Raises
    UnfitTorchError for builds that do not: those for Windows and macOS, and versions that renamed it.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), REGISTRY)
    except (OSError, ValueError) as error:
        raise UnfitTorchError(
            f"the pretended GPU works with torch 2.10 to 2.13 on Linux and not with this torch {torch.__version__}: "
            f"{library} holds no registry of device guards ({error}); see tests/pretended_gpu/guard.py"
        ) from error
    before = guards[CUDA]
    guards[CUDA] = guards[CPU]
    try:
        yield
    finally:
        guards[CUDA] = before
