"""A progress bar that moves with every denoising step, within batches too."""

from collections.abc import Iterable, Sequence

from tqdm import tqdm


class StepBar:
    """Counts the denoising steps of requests, `steps` each. What early exit saves counts when a request is finished."""

    def __init__(self, steps: Sequence[int], *, disable: bool) -> None:
        self._steps, self._finished = steps, 0
        # The name that lm-eval's own models give to it.
        self._bar = tqdm(total=sum(steps), desc="Running generate_until requests", unit=" steps", disable=disable)

    def advance(self, n_rows: int) -> None:
        """So many rows took a step."""
        self._bar.update(min(n_rows, (self._bar.total or 0) - self._bar.n))

    def finish(self, requests: Iterable[int]) -> None:
        """These requests have their answers."""
        self._finished += sum(self._steps[n] for n in requests)
        self._bar.update(self._finished - self._bar.n)  # back, where memory ran out within a batch

    def close(self) -> None:
        """The end of the run."""
        self._bar.close()
