"""Runs requests in batches of a fixed size, or of the largest size that fits into memory."""

from collections.abc import Callable, Sequence

from accelerate import find_executable_batch_size
from accelerate.utils.memory import should_reduce_batch_size

from mdlm_lm_eval.options import OptionError


class Batches:
    """Batch size as lm-eval gives it. `auto` starts from the largest size and halves it whenever memory runs out."""

    def __init__(self, batch_size: int | str, largest: int) -> None:
        self.automatic = batch_size == "auto"
        self.size = largest if self.automatic else int(batch_size)

    def run(
        self,
        indices: Sequence[int],
        run: Callable[[list[int], int], None],
        *,
        batches_per_call: int = 1,
        rows_of: Callable[[int], int] = lambda _: 1,
    ) -> None:
        """Calls `run(part, batch size)` for consecutive parts of `indices`, each of at most so many batches of rows.

        An index stands for `rows_of(index)` rows, and a part has one index at least.

        Parts that are done stay done when a later one runs out of memory; the smaller size is kept for the next call.
        Raises OptionError where memory runs out at a size that was asked for, or at one.
        """
        left = list(indices)

        def run_left(batch_size: int) -> None:
            self.size = batch_size
            while left:
                part = _leading(left, rows_of, batch_size * batches_per_call)
                run(part, batch_size)
                del left[: len(part)]

        if self.automatic:
            find_executable_batch_size(run_left, starting_batch_size=self.size, reduce_batch_size_fn=self._smaller)()
            return
        try:
            run_left(self.size)
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            raise OptionError(f"batch_size={self.size} does not fit into memory; use a smaller one, or auto") from error

    def _smaller(self) -> int:
        if self.size == 1:
            raise OptionError(
                "a single request does not fit into memory; use fewer masks (n_masks), dtype=bfloat16, or several GPUs "
                "(parallelize=True)"
            )
        return self.size // 2


def _leading(indices: list[int], rows_of: Callable[[int], int], most_rows: int) -> list[int]:
    rows = 0
    for count, index in enumerate(indices):
        rows += rows_of(index)
        if rows > most_rows:
            return indices[: max(1, count)]
    return indices[:]
