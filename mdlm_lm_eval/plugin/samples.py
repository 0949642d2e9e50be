"""`--samples`, the questions of each task that are evaluated: lm-eval takes all where a name or number is wrong."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.values import OptionError, did_you_mean, must_be, shown


def check_samples(samples: object) -> None:
    """Raises OptionError unless these, or the file that they name, are tasks with numbers of questions."""
    if isinstance(samples, str):
        samples = _read(samples)
    if not isinstance(samples, dict) or not samples:
        raise must_be("--samples", 'tasks with the numbers of their questions, such as {"gsm8k": [0, 5]}', samples)
    for task, numbers in samples.items():
        fit = isinstance(numbers, list) and numbers and all(type(number) is int and number >= 0 for number in numbers)
        # In another order, lm-eval writes the number of one question beside another.
        if not fit or any(first >= second for first, second in pairwise(numbers)):
            raise must_be(f"--samples of {shown(task)}", "whole numbers from 0, in rising order and each once", numbers)


def check_sampled_tasks(samples: Iterable[str], tasks: Iterable[Any], index: Mapping[str, Any]) -> None:
    """Raises OptionError for a name in `samples` that is none of `tasks`, which may be groups in lm-eval's index."""
    names = {name for task in tasks for name in _names_within(task, index)}
    for name in samples:
        if name not in names:
            groups = "; it is a group, whose tasks are named one by one" if name in index and name in tasks else ""
            hint = did_you_mean(name, names) or f"the tasks are {', '.join(sorted(names))}"
            raise OptionError(f"--samples: {shown(name)} is no task that is evaluated{groups}; {hint}")


def _read(text: str) -> object:
    """What lm-eval makes of a text: JSON, or else a file's name."""
    try:
        return json.loads(text)
    except ValueError:
        if not Path(text).is_file():
            raise OptionError(f"--samples {shown(text)}: there is no such file") from None
    try:
        return json.loads(Path(text).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"--samples {shown(text)}: cannot be read: {one_line(error)}") from error


def _names_within(task: Any, index: Mapping[str, Any], group: str = "") -> Iterator[str]:
    """The tasks that a name, or what a YAML holds, stands for, each under the name that lm-eval gives it."""
    name, members = (task, None) if isinstance(task, str) else (task.get("group", task.get("task")), task.get("task"))
    entry = index.get(name) if group or isinstance(task, str) else None
    if entry is not None:
        members = sorted(entry.tags) if entry.kind.name == "TAG" else (entry.cfg or {}).get("task")
    elif group:
        name = f"{group}::{name}"
    if isinstance(members, list):
        for member in members:
            yield from _names_within(member, index, name)
    else:
        yield name
