"""`--samples`, the questions of each task that are evaluated: lm-eval takes all where a name or number is wrong."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

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


def check_sampled_tasks(samples: Mapping[str, Sequence[int]], n_questions: Mapping[str, int]) -> None:
    """Raises OptionError for a name in `samples` that is no task of the run, and a number that is no question's."""
    for task, numbers in samples.items():
        if task not in n_questions:
            hint = did_you_mean(task, n_questions) or f"the tasks are {', '.join(sorted(n_questions))}"
            raise OptionError(f"--samples: {shown(task)} is no task that is evaluated; {hint}")
        if numbers[-1] >= n_questions[task]:
            raise must_be(f"--samples of {task}", f"whole numbers below {n_questions[task]}", numbers[-1])


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
