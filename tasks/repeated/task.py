"""Questions that are asked several times: the mean of each metric (avg@n), and pass@k of right and wrong answers.

A task of these YAMLs has another one of lm-eval in it, whose data, prompts, filters and metrics it has; `--metadata
repeats=16` says how often a question is asked. `mdlm-sweep --repeats` asks any task so.
"""

from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import lm_eval.tasks
from lm_eval.api import task as lm_eval_task
from lm_eval.tasks._yaml_loader import load_yaml

from mdlm_lm_eval.options import OptionError, parse_whole

_FOLDER = Path(lm_eval.tasks.__file__).parent
# lm-eval 0.5 has a class for each type of output.
Base: Any = getattr(lm_eval_task, "GenerateTask", lm_eval_task.ConfigurableTask)


class RepeatedTask(Base):
    """The task in `yaml` below lm-eval's folder of tasks, whose settings are those of this one where it has any."""

    def __init__(self, config: dict[str, Any]) -> None:
        config = dict(config)
        del config["class"]
        theirs = load_yaml(_FOLDER / config.pop("yaml"))
        theirs.pop("tag", None)
        for name in ("generation_kwargs", "metadata"):
            config[name] = theirs.get(name, {}) | config.get(name, {})
        super().__init__(config=theirs | config)
        asked = self.config.metadata.get("repeats", self.config.repeats)
        repeat(self, parse_whole("repeats", asked, least=1))


def repeat(task: Any, n: int) -> None:
    """Lets a task ask each question `n` times.

    Filters and metrics see one repetition after the other, as if there were no others. Results then have of each
    question the mean of every metric, and pass@k for k of 2, 4, 8 up to n where it is 0 or 1.
    """
    task.config.repeats = n
    for name in ("apply_filters", "process_results"):  # those of another number of repetitions
        vars(task).pop(name, None)
    apply_filters, process_results = task.apply_filters, task.process_results

    def filtered() -> None:
        instances = task.instances
        all_resps, found = [one.resps for one in instances], []
        for repetition in range(n):
            for one, resps in zip(instances, all_resps, strict=True):
                one.resps, one.filtered_resps = [resps[repetition]], {}
            apply_filters()
            found.append([one.filtered_resps for one in instances])
        for one, resps, *of_each in zip(instances, all_resps, *found, strict=True):
            one.resps = resps
            one.filtered_resps = {name: [each[name] for each in of_each] for name in of_each[0]}

    def processed(doc: Any, results: Sequence[Sequence[Any]]) -> dict[str, float]:
        scores = summary([process_results(doc, list(of_each)) for of_each in zip(*results, strict=True)])
        for name in scores:
            task.aggregation().setdefault(name, fmean)
            task.higher_is_better().setdefault(name, True)
        return scores

    if n > 1:
        task.apply_filters, task.process_results = filtered, processed


def summary(of_each: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The metrics of a question from those of its repetitions. Raises OptionError for one that is not a number."""
    found, n = {}, len(of_each)
    for name in of_each[0]:
        values = [one[name] for one in of_each]
        if not all(isinstance(value, (int, float)) for value in values):
            raise OptionError(f"repeats={n}: {name} is not one number per answer, so it has no mean over repetitions")
        found[name] = fmean(values)
        if all(value in (0, 1) for value in values):
            before = "" if name.startswith("pass") else f"{name}_"
            ks = [k for k in (2**power for power in range(1, 14)) if k <= n]
            found |= {f"{before}pass@{k}": pass_at(k, n, int(sum(values))) for k in ks}
    return found


def pass_at(k: int, n: int, right: int) -> float:
    """The share of choices of `k` among `n` answers that hold a right one, unbiased (Chen et al. 2021, equation 1)."""
    return 1 - comb(n - right, k) / comb(n, k)
