"""Looks at all tasks before the first request is run: lm-eval runs one kind of request after the other, for hours."""

from collections.abc import Iterable, Mapping
from typing import Any

from lm_eval.api.model import CachingLM
from lm_eval.api.task import Task

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError


def check_tasks(model: object, tasks: Mapping[Any, Any]) -> None:
    """Raises OptionError, which names the task, where `--model mdlm` would refuse its requests."""
    lm = model.lm if isinstance(model, CachingLM) else model
    if not isinstance(lm, MDLM):
        return
    for task in _leaves(tasks.values()):
        try:
            lm.check_task(task.OUTPUT_TYPE, task.config.generation_kwargs)
        except OptionError as error:
            raise OptionError(f"{task.config.task}: {error}") from error


def _leaves(tasks: Iterable[Any]) -> Iterable[Task]:
    for task in tasks:
        if isinstance(task, Task):
            yield task
        elif isinstance(task, Mapping):  # of a group, in either of lm-eval's forms
            yield from _leaves(task.values())
