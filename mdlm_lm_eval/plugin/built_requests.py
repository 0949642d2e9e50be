"""What a task's requests are built of: lm-eval's `--cache_requests` knows them by the task and few settings alone."""

import hashlib
import json
from collections.abc import Sequence
from types import FunctionType

from lm_eval.api.task import Task


def requests_digest(task: Task, samples: Sequence[int] | None) -> str:
    """Digest of a task's config (`--gen_kwargs` and `--metadata` are in it), few-shot seed and chosen documents."""
    seed = task.fewshot_rnd and task.fewshot_rnd.getstate()
    asked = json.dumps([task.dump_config(), samples, seed], sort_keys=True, default=_as_text)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _as_text(value: object) -> str:
    """A function by its name: its address differs from process to process."""
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, FunctionType) else repr(value)
