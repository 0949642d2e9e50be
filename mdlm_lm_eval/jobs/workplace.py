"""The place that the jobs of one model share: the model, its batch size, its record and its request cache."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from lm_eval.api.instance import Instance
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from mdlm_lm_eval.decoding.guests import GuestError
from mdlm_lm_eval.decoding.memory import RowSize, rows_that_fit
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.prefix_store import MOST_RUN
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.record import RunRecord
from mdlm_lm_eval.request_cache import RequestCache

# A GPU's pass over more tokens than these takes no less time for each of them.
_MOST_TOKENS = 65_536


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


@dataclass(frozen=True)
class Workplace:
    """Model, batch size, record and request cache of one evaluation, in one of `world_size` processes.

    eos_ids, end_of_turn_ids: tokens that end an answer.
    mixed_precision: the dtype that passes run in where it is not that of the weights.
    shows_progress: whether jobs draw a bar. shares_prefixes: whether what requests begin with is run once.
    """

    denoiser: Denoiser
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    end_of_turn_ids: frozenset[int]
    device: torch.device
    batches: Batches
    record: RunRecord
    draws: str | None
    request_cache: RequestCache | None
    mixed_precision: torch.dtype | None
    rank: int
    world_size: int
    shows_progress: bool
    shares_prefixes: bool

    @contextmanager
    def measured(self, instances: Sequence[Instance]) -> Iterator[devices.Meter]:
        """Measures the forward passes inside. Names task and document where logits are not finite."""
        try:
            with torch.autocast(self.device.type, self.mixed_precision, enabled=self.mixed_precision is not None):
                yield devices.Meter(self.device)
        except NonFiniteLogitsError as error:
            instance = instances[error.index]
            raise OptionError(
                f"the model's logits are not finite (NaN or infinity) for the task {instance.task_name}, document "
                f"{instance.doc_id}: its weights are damaged, or its dtype is too narrow (try dtype=float32)"
            ) from error
        except GuestError as error:
            instance = instances[error.index]
            raise OptionError(f"{error} (task {instance.task_name}, document {instance.doc_id})") from error.__cause__

    def most_rows(self, row: RowSize, *, n_shared: int) -> int:
        """Rows of this size that fit into a GPU beside the weights.

        Keys and values of `n_shared` tokens of shared prefixes are stored there, too.
        """
        free = devices.free_bytes(self.device)
        if free is None or self.denoiser.generate is not None:
            return self.batches.most
        config, itemsize = self.denoiser.model.config, self.denoiser.dtype.itemsize
        if n_shared:
            stored = RowSize(
                length=n_shared,
                n_run=min(n_shared, MOST_RUN),
                n_logits=0,
                is_cached=True,
                is_guided=row.is_guided,
            )
            free -= stored.total(config, itemsize)
        most = self.batches.most if row.is_cached else max(1, min(self.batches.most, _MOST_TOKENS // row.length))
        return rows_that_fit(row.total(config, itemsize), free, most=most)

    def bar(self, request_type: str, total: int, unit: str) -> "tqdm[Any]":
        """The progress of a job."""
        return tqdm(total=total, desc=f"Running {request_type} requests", unit=unit, disable=not self.shows_progress)

    def save(self, request_type: str, answers: Iterable[tuple[tuple[Any, ...], Any, int | None]]) -> None:
        """Writes answers (arguments, answer, own seed) and the record so far to the request cache, if there is one."""
        if self.request_cache is not None:
            self.request_cache.save(request_type, answers, self.record)
