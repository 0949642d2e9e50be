"""The processes that one launcher (`torchrun`) started to compute each cell together."""

import os
from datetime import timedelta

import torch.distributed
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from mdlm_lm_eval.model.devices import best_device, share_cpu_among_processes
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.plan import Cell

# Processes that fail alike do so within this time; one that is silent waits for what a failed one will never send.
_SECONDS_TO_SETTLE = 60.0


class Ranks:
    """This process among those of its launcher."""

    def __init__(self) -> None:
        self.n, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        self.is_first = self.rank == 0
        self._n_told = 0

    def check_limit(self, limit: float | None) -> None:
        """Raises OptionError where fewer questions are asked than there are processes: lm-eval gives each its own."""
        if limit is not None and 1 <= limit < self.n:
            raise OptionError(
                f"--limit {limit:g} leaves some of {self.n} processes without a question; it must be at least {self.n}"
            )

    def told(self, cell: Cell | None) -> Cell | None:
        """What the first process says to all; they wait for it as long as it takes."""
        if self.n == 1:
            return cell
        share_cpu_among_processes()
        self._n_told += 1
        PartialState(cpu=best_device() == "cpu", timeout=timedelta(weeks=52))
        return broadcast_object_list([cell])[0]

    def settle(self, error: Exception | None, *, seconds: float = _SECONDS_TO_SETTLE) -> None:
        """Says that this process is through with a cell, with an error or without.

        Raises OptionError where a process that failed is not followed by the others within so many seconds: what they
        wait for never comes, and only the end of this process ends them.
        """
        if self.n == 1:
            return
        store = torch.distributed.distributed_c10d._get_default_store()
        keys = [f"mdlm-sweep cell {self._n_told} rank {rank}" for rank in range(self.n)]
        store.set(keys[self.rank], "settled")
        if error is None:
            return
        try:
            store.wait(keys, timedelta(seconds=seconds))
        except torch.distributed.DistError as silence:
            raise OptionError(
                f"process {self.rank} of {self.n} failed alone ({type(error).__name__}: {error}), and the others wait "
                "for it; what is finished is kept, start the same command again"
            ) from silence
