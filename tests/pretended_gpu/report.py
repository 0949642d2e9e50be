"""What a pretended GPU has seen."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_OWN = str(Path(__file__).parent)
_ROOMS = ("mdlm_lm_eval", "mdlm_finetune", "benchmarks", "transformers", "peft", "accelerate", "tests")


class PretendedGpuError(RuntimeError):
    """What CUDA would refuse, or answer wrongly."""


@dataclass
class Report:
    """Counts of one run. Where something is counted by place, the key names it and the line that caused it.

    waits: the host waits for the device: `.item()`, `.cpu()`, nonzero, a boolean index, a copy to pageable memory.
    blocking_copies: from pageable memory to the device; CUDA runs the stream empty first.
    copies_between: from one device to another.
    kernels: launches, by zone: "model" inside the forward of a model that `move_to_gpu` moved, else "outside".
    captured, replayed: graphs. One replay is one launch.
    attention_shapes: the distinct problems that scaled_dot_product_attention was asked.
    peak: the most bytes of tensors that were alive at once, and live: those that are now.
    """

    waits: Counter[str] = field(default_factory=Counter)
    blocking_copies: Counter[str] = field(default_factory=Counter)
    copies_between: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    captured: int = 0
    replayed: int = 0
    attention_shapes: set[object] = field(default_factory=set)
    live: int = 0
    peak: int = 0

    def allocated(self, n_bytes: int) -> None:
        """Counts memory of the device that is taken, or with a negative number given back."""
        self.live += n_bytes
        self.peak = max(self.peak, self.live)


def place() -> str:
    """The innermost line of a package of interest that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        parts = Path(name).parts
        inside = [part for part in _ROOMS if part in parts]
        if inside and not name.startswith(_OWN):
            return f"{'/'.join(parts[parts.index(inside[0]) :])}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
