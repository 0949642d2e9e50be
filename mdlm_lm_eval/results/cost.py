"""What the answers of one task took."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass
class TaskCost:
    """Sums over a task's requests, whatever batches these were in.

    forward_passes: passes of the model that a request's row took part in.
    denoising_steps: the passes in which masks could be filled or tokens changed.
    layer_tokens: positions that went through the layers, 0 where nobody counts them.
    written_tokens: tokens in the returned slots, those behind an EOS too.
    answer_tokens: tokens up to the EOS or end of turn, without it.
    canvases: of likelihood tasks, the canvases that were scored; those of a batch are shared out among its requests.
    seconds: wall time of decoding or scoring, shared out likewise.
    peak_memory_bytes: the most that was in use meanwhile, as `devices.measured` has it.
    """

    forward_passes: int = 0
    denoising_steps: int = 0
    layer_tokens: int = 0
    written_tokens: int = 0
    answer_tokens: int = 0
    canvases: float = 0.0
    seconds: float = 0.0
    peak_memory_bytes: int = 0

    def add(self, **amounts: float) -> None:
        """Adds what one more request took; the peak is the highest of all."""
        for name, amount in amounts.items():
            own = getattr(self, name)
            setattr(self, name, max(own, amount) if name == "peak_memory_bytes" else own + amount)

    def merge(self, other: "TaskCost") -> None:
        """Adds what another process took for the same task; they work at the same time, so that seconds are not added
        up.
        """
        seconds = max(self.seconds, other.seconds)
        self.add(**vars(other))
        self.seconds = seconds

    def as_dict(self) -> dict[str, Any]:
        """For the results file: without what was not counted, and with the tokens per forward pass.

        These are the answer's tokens, over sums (d3LLM, arXiv 2601.07568); `written_tokens_per_forward` also counts
        what stands from the EOS on.
        """
        found = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name)}
        if "canvases" in found:
            found["canvases"] = round(self.canvases)
        if self.forward_passes:
            found["tokens_per_forward"] = self.answer_tokens / self.forward_passes
            found["written_tokens_per_forward"] = self.written_tokens / self.forward_passes
        return found
