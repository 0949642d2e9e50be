"""A progress bar that moves with every denoising step, within batches too."""

from collections.abc import Collection, Iterable, Sequence

from tqdm import tqdm


class StepBar:
    """Counts the denoising steps of requests, `steps` each. What early exit saves counts when a request is finished.

    What an earlier run `finished` takes no part in the speed that the time left is told from.
    """

    def __init__(self, steps: Sequence[int], finished: Collection[int] = (), *, disable: bool) -> None:
        self._steps, self._finished = steps, sum(steps[n] for n in finished)
        # The name that lm-eval's own models give to it.
        what = "Running generate_until requests"
        self._bar = tqdm(total=sum(steps), initial=self._finished, desc=what, unit=" steps", disable=disable)

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
