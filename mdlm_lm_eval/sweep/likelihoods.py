"""Refuses a sweep with likelihoods that cannot be computed, before its first pass.

lm-eval hands over one type of request at a time: without this check, a task's answers would all be generated before the
model sees the likelihoods of the same cell.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from datasets import disable_caching, enable_caching
from lm_eval.api.instance import Instance

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.plan import Cell, Sweep

_KINDS = ("loglikelihood", "loglikelihood_rolling")


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
        with suppress(OptionError):
            for kind in _KINDS:
                lm.check_likelihoods(kind)
            if lm.settings.likelihood.n_masks == "auto":
                continue  # no request could be refused
        key = repr((cell.task, cell.metadata))
        if key not in known:
            disable_caching()  # `datasets` would store what a task draws at random now, and its cells would ask that
            try:
                known[key] = _requests(lm, sweep, load(cell))
            finally:
                enable_caching()
        try:
            for one in known[key]:
                lm.check_likelihoods(one.request_type)
                lm.scored(one.request_type, one, at_own_length=False)
        except OptionError as error:
            raise OptionError(f"{cell.name}: {error}") from error


def _requests(lm: MDLM, sweep: Sweep, tasks: dict[str, Any]) -> list[Instance]:
    """The likelihood requests of some tasks, without examples and system prompts, which change no continuation."""
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
            apply_chat_template=bool(sweep.apply_chat_template),
            chat_template=lm.apply_chat_template,
        )
        found += [one for one in task.instances if one.request_type in _KINDS]
    return found
