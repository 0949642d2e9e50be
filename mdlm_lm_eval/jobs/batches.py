"""The batch size of a run, which `auto` halves whenever memory runs out."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

T = TypeVar("T")


class Batches:
    """Batch size as lm-eval gives it. `auto` starts from the largest size and halves it whenever memory runs out.

    size: the one in use; most: the largest that has not run out of memory yet.
    """

    def __init__(self, batch_size: int | str, largest: int) -> None:
        self.automatic = batch_size == "auto"
        self.size = self.most = largest if self.automatic else int(batch_size)

    def run(
        self,
        requests: Sequence[T],
        run: Callable[[list[T], int], None],
        *,
        batches_per_call: int,
        most: int,
        rows_of: Callable[[T], int] = lambda _: 1,
    ) -> None:
        """Calls `run(part, batch size)` for consecutive parts of `requests`, each of at most so many batches of rows.

        A request stands for `rows_of(request)` rows; a part has at least one request. `auto` takes up to `most` rows.
        Parts that are done stay done when a later one runs out of memory; the smaller size is kept for the next call.
        """
        left = list(requests)
        self.size = min(self.most, most) if self.automatic else self.size
        while left:
            rows = count = 0
            while count < len(left) and (count == 0 or rows + rows_of(left[count]) <= self.size * batches_per_call):
                rows += rows_of(left[count])
                count += 1
            try:
                run(left[:count], self.size)
            except RuntimeError as error:
                if not should_reduce_batch_size(error) or not self.automatic or self.size == 1:
                    raise
                self.size = self.most = self.size // 2
            else:
                del left[:count]
                continue
            clear_device_cache(garbage_collection=True)  # here, where the error no longer holds the batch's tensors
