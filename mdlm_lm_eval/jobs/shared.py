"""What jobs share: requests with their seeds, batches that are halved when memory runs out, measured passes.

What stands before `Batches` also serves requests that a server answers.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from lm_eval.api.instance import Instance

from mdlm_lm_eval.decoding.canvas import repetitions, seed_of, seed_of_request
from mdlm_lm_eval.decoding.guests import GuestError
from mdlm_lm_eval.jobs.request_cache import RequestCache
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.prefix_store import LEAST_SAVED
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from mdlm_lm_eval.record import Answer, RunRecord, TaskRecord
from mdlm_lm_eval.resolve import Settings

logger = logging.getLogger(__name__)
_MOST_UNKNOWN = 0.01  # share of a task's tokens
_UNKNOWN = "%s: %.1f%% of the tokens of its texts are unknown to the tokenizer; is it the model's own?"
T = TypeVar("T")


@dataclass(kw_only=True)
class PreparedRequest:
    """One request that is ready to be answered.

    numbers: effective numbers, such as masks and steps; results contain the range of each.
    truncated: the number of prompt tokens that were cut off.
    text: the number of its text's tokens, and of those that are unknown, as `count_unknown` returns them.
    own_seed: the request's seed if repetitions have different answers; None if lm-eval's `--use_cache` may give all
        repetitions the same answer.
    exact: the exact answer to an audited request; None before it is decoded, and for other requests.
    """

    instance: Instance
    options: DecodingOptions | LikelihoodOptions
    numbers: Mapping[str, float]
    truncated: int
    text: Counter[str]
    own_seed: int | None = None
    exact: Answer | None = None

    def saved_sample(self, cache: RequestCache | None) -> str | None:
        """Returns the answer that an earlier run saved for the request's own seed, or None."""
        if cache is None or self.own_seed is None:
            return None
        return cache.sample(self.instance.args, self.own_seed)

    def add_to(
        self, record: RunRecord, request_type: str, cost: Mapping[str, float], answer: Answer | None = None
    ) -> TaskRecord:
        """Records an answered request, and returns the record of its task.

        The `answer` to an audited request is compared with the exact one.
        """
        name = task_of(self.instance)
        record.settings[request_type, self.options].add(name)
        task = record.tasks[name]
        task.requests += 1
        task.drawn += self.own_seed is not None
        task.truncated_prompts += self.truncated > 0
        task.truncated_tokens += self.truncated
        task.text.update(self.text)
        task.cost.add(cost)
        for number, value in self.numbers.items():
            lowest, highest = task.ranges.get(number, (value, value))
            task.ranges[number] = (min(lowest, value), max(highest, value))
        if self.exact is not None and answer is not None:
            task.audit(self.instance.doc_id, answer, self.exact)
        return task


def task_of(instance: Instance) -> str:
    """Returns the name of a request's task. Tasks with a class of their own have a config in the place of the name."""
    name = instance.task_name
    return (name.get("task") if isinstance(name, dict) else name) or "no task"  # requests made in Python have none


def warn_of_unknown(texts: Iterable[tuple[str, Counter[str]]]) -> None:
    """Warns of each task whose texts have too many unknown tokens; `texts` are the tasks' names and counts."""
    counts: dict[str, Counter[str]] = {}
    for name, text in texts:
        counts.setdefault(name, Counter()).update(text)
    for name, count in counts.items():
        if count["unknown"] > _MOST_UNKNOWN * count["tokens"]:
            logger.warning(_UNKNOWN, name, 100 * count["unknown"] / count["tokens"])


def seeds_of(requests: Sequence[Instance], seeds: Sequence[int]) -> list[int]:
    """Returns a seed for each generation request, so that batches, order, processes and other tasks change no answer.

    It comes from the request's content. Equal requests of one document and task are repetitions (of a task with
    `repeats`), and each has a different seed.
    """
    pairs = list(zip(requests, seeds, strict=True))
    # Two documents may have the same text.
    counts = repetitions((task_of(one), one.doc_id, seed_of_request(seed, one.args)) for one, seed in pairs)
    return [seed_of_request(seed, one.args, count) for (one, seed), count in zip(pairs, counts, strict=True)]


def own_requests(requests: Sequence[Instance], world_size: int) -> tuple[list[Instance], list[int]]:
    """Drops lm-eval's padding copies.

    lm-eval repeats a process's last request until all processes have the same number of requests. Returns the requests
    without these copies, and for each given request the index of the one with its answer. Repetitions of a request
    follow each other.
    """
    n_copies, repeats = 0, (requests[-1].repeats or 1) if requests else 1
    if world_size > 1:
        n_copies = max(0, sum(instance is requests[-1] for instance in requests) - repeats)
    n_own = len(requests) - n_copies
    return list(requests[:n_own]), [*range(n_own), *(n_own - repeats + n % repeats for n in range(n_copies))]


def in_drawn_order(requests: Iterable[tuple[str, int]], label: str) -> dict[str, list[tuple[float, int]]]:
    """Puts the requests (task, seed) of each task into a random order, as (number in [0, 1), index in `requests`).

    The order depends on the seeds and on `label`, and not on batches or on the order in which requests come.
    """
    by_task: dict[str, list[tuple[int, int]]] = {}
    for index, (task, seed) in enumerate(requests):
        by_task.setdefault(task, []).append((seed_of(f"{label} {seed}"), index))
    return {task: [(digest / 2**63, index) for digest, index in sorted(of_task)] for task, of_task in by_task.items()}


class Batches:
    """The batch size as lm-eval gives it. `auto` starts from the largest size and halves it when memory runs out.

    size: the size in use, in rows; most: the largest size that has not run out of memory yet.
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
        """Calls `run(part, batch size)` for consecutive parts of `requests`.

        A request stands for `rows_of(request)` rows. A part has at least one request, and at most the rows of
        `batches_per_call` batches. With `auto`, a batch has at most `most` rows. If memory runs out, only the current
        part is repeated, with a smaller batch size that later calls keep.
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
            clear_device_cache(garbage_collection=True)  # not earlier: the error held the batch's tensors


class Context(Protocol):
    """A loaded model as jobs see it, and where they record and save answers.

    max_length: tokens that fit on a canvas. rank, world_size: of this process.
    """

    denoiser: Denoiser
    tokenizer: Any
    eos_ids: frozenset[int]
    end_of_turn_ids: frozenset[int]
    max_length: int
    batches: Batches
    record: RunRecord
    request_cache: RequestCache | None
    settings: Settings
    mixed_precision_dtype: torch.dtype | None
    rank: int
    world_size: int


def least_saved(context: Context) -> float:
    """The fewest tokens that a shared prefix must save; infinitely many if prefixes are not to be shared."""
    return LEAST_SAVED if context.settings.model.share_prefix else math.inf


@contextmanager
def measured(context: Context, instances: Sequence[Instance]) -> Iterator[devices.Meter]:
    """Measures the forward passes inside the `with` block.

    Raises OptionError, which names task and document, if logits are not finite or a guest fails.
    """
    device, dtype = context.denoiser.device, context.mixed_precision_dtype
    try:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            yield devices.Meter(device)
    except NonFiniteLogitsError as error:
        instance = instances[error.index]
        raise OptionError(
            f"the model's logits are not finite (NaN or infinity) for the task {instance.task_name}, document "
            f"{instance.doc_id}: its weights are damaged, or its dtype is too narrow (try dtype=float32)"
        ) from error
    except GuestError as error:
        instance = instances[error.index]
        raise OptionError(f"{error} (task {instance.task_name}, document {instance.doc_id})") from error.__cause__
