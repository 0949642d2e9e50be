"""Looks at all tasks before the first request is run: lm-eval runs one kind of request after the other, for hours."""

from collections.abc import Iterator, Mapping
from typing import Any

from lm_eval.api.model import CachingLM
from lm_eval.api.task import Task

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.plugin.samples import check_sampled_tasks, check_samples


def check_tasks(model: object, tasks: Mapping[Any, Any], samples: Any = None) -> None:
    """Raises OptionError, which names the task, where `--model mdlm` would refuse its requests, or `samples` are not
    questions of these tasks.
    """
    lm = model.lm if isinstance(model, CachingLM) else model
    if not isinstance(lm, MDLM):
        return
    found = dict(_leaves(tasks))
    for name, task in found.items():
        try:
            lm.check_task(task.OUTPUT_TYPE, task.config.generation_kwargs)
        except OptionError as error:
            raise OptionError(f"{name}: {error}") from error
    if samples is not None:
        check_samples(samples)
        check_sampled_tasks(samples, {name: len(task.eval_docs) for name, task in found.items()})


def _leaves(tasks: Mapping[Any, Any]) -> Iterator[tuple[str, Task]]:
    for name, task in tasks.items():
        if isinstance(task, Task):
            yield str(name), task
        elif isinstance(task, Mapping):  # of a group, in either of lm-eval's forms
            yield from _leaves(task)
