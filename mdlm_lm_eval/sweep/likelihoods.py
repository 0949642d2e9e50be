"""Refuses a sweep with likelihoods that cannot be computed, before its first pass.

lm-eval hands over one type of request at a time: without this check, a task's answers would all be generated before the
model sees the likelihoods of the same cell.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from datasets import disable_caching, enable_caching, is_caching_enabled
from lm_eval.api.instance import Instance

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.plan import Cell, Sweep


def check_likelihoods(lm: MDLM, sweep: Sweep, load: Callable[[Cell], dict[str, Any]]) -> None:
    """Raises OptionError for the first cell whose options allow no likelihoods, or whose `n_masks` are too few.

    load: returns a cell's tasks by name. It is called only where options could be at fault, and once for all cells of
    a task.
    """
    known: dict[str, list[Instance]] = {}
    for cell in sweep.cells:
        if cell.task.startswith("mdlm_"):  # the package's own tasks, which only generate
            continue
        lm.use_options(cell.arguments)
        refused = {kind: _refusal(lm, kind) for kind in ("loglikelihood", "loglikelihood_rolling")}
        if lm.settings.likelihood.n_masks == "auto" and not any(refused.values()):
            continue
        key = repr((cell.task, cell.metadata))
        if key not in known:
            with _without_a_trace():
                known[key] = _requests(lm, sweep, load(cell))
        for kind, sentence in refused.items():
            asked = [one for one in known[key] if one.request_type == kind]
            if asked and sentence:
                raise OptionError(f"{cell.name}: {sentence}")
            try:
                for one in asked:
                    lm.scored(kind, one, at_own_length=False)
            except OptionError as error:
                raise OptionError(f"{cell.name}: {error}") from error


@contextmanager
def _without_a_trace() -> Iterator[None]:
    """Keeps `datasets` from storing what a task draws at random while it is loaded: its cells would be asked that."""
    was_caching = is_caching_enabled()
    disable_caching()
    try:
        yield
    finally:
        if was_caching:
            enable_caching()


def _refusal(lm: MDLM, request_type: str) -> str | None:
    try:
        lm.check_likelihoods(request_type)
    except OptionError as error:
        return str(error)
    return None


def _requests(lm: MDLM, sweep: Sweep, tasks: dict[str, Any]) -> list[Instance]:
    """The likelihood requests of some tasks without examples, which change no continuation."""
    found: list[Instance] = []
    for name, task in tasks.items():
        if task.OUTPUT_TYPE == "generate_until":
            continue
        task.set_config("num_fewshot", 0)
        limit = sweep.limit
        if limit is not None:
            limit = math.ceil(len(task.eval_docs) * limit) if limit < 1 else int(limit)
        task.build_all_requests(
            limit=limit,
            samples=None if sweep.samples is None else sweep.samples.get(name),
            system_instruction=sweep.system_instruction,
            apply_chat_template=bool(sweep.apply_chat_template),
            fewshot_as_multiturn=sweep.fewshot_as_multiturn,
            chat_template=lm.apply_chat_template if sweep.apply_chat_template else None,
        )
        found += task.instances
    return found
