"""Where a model runs."""

import os

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


def check_device(device: str | None) -> None:
    """Raises OptionError for a device that this machine does not have."""
    try:
        found = torch.empty(0, device=device).device
        # torch knows a device without memory, and takes cpu:99 for cpu.
        is_here = found.type != "meta" and (found.type != "cpu" or device in (None, "cpu", "cpu:0"))
    except (RuntimeError, AssertionError):
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
