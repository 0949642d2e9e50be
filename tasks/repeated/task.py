"""Questions that are asked several times: the mean of each metric (avg@n), and pass@k of right and wrong answers.

A task of these YAMLs has another one of lm-eval in it, whose data, prompts, filters and metrics it has; `--metadata
repeats=16` says how often a question is asked. `mdlm-sweep --repeats` asks any task so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import lm_eval.tasks
from lm_eval.api import metrics as lm_eval_metrics
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
        for metric in theirs["metric_list"]:
            if callable(metric["metric"]) and hasattr(Base, "process_instances"):
                metric["metric"] = for_one_answer(metric["metric"])
        super().__init__(config=theirs | config)
        self.UNSAFE_CODE = self.config.unsafe_code  # lm-eval 0.5 reads this and sets it nowhere
        asked = self.config.metadata.get("repeats", self.config.repeats)
        repeat(self, parse_whole("repeats", asked, least=1))

    def set_repeats(self, repeats: int) -> None:
        """As lm-eval 0.5 sets its own `--repeats`."""
        repeat(self, repeats)


def for_one_answer(metric: Callable[..., Any]) -> Callable[..., Any]:
    """A function of lm-eval's folder of tasks as lm-eval 0.5 calls a metric: with answers, for a score of each.

    It was written for 0.4, which calls it with lists of answers to a question, for one score.
    """

    @wraps(metric)
    def scored(references: list[str], predictions: list[str], **named: Any) -> Any:
        found = metric(references, [predictions], **named)
        return {name: [score] for name, score in found.items()} if isinstance(found, dict) else [found]

    return scored


def repeat(task: Any, n: int) -> None:
    """Lets a task ask each question `n` times.

    Filters and metrics see one repetition after the other, as if there were no others. Results then have of each
    question the mean of every metric, and pass@k for k of 2, 4, 8 up to n if all answers to all questions have 0 or 1.
    """
    task.config.repeats = n
    for name in ("apply_filters", "process_results", "process_instances"):  # those of another number of repetitions
        vars(task).pop(name, None)
    if n > 1 and hasattr(task, "process_instances"):  # lm-eval 0.5
        task.process_instances = _processed_instances(task, n)
    elif n > 1:
        task.apply_filters, task.process_results = _filtered_and_processed(task, n)


def _one_by_one(instances: Sequence[Any], n: int) -> Iterator[None]:
    """Gives the requests one answer each, `n` times, and in the end all answers and what filters made of each."""
    all_resps, found = [one.resps for one in instances], []
    for repetition in range(n):
        for one, resps in zip(instances, all_resps, strict=True):
            one.resps, one.filtered_resps = [resps[repetition]], {}
        yield
        found.append([one.filtered_resps for one in instances])
    for one, resps, *of_each in zip(instances, all_resps, *found, strict=True):
        one.resps = resps
        one.filtered_resps = {name: [each[name] for each in of_each] for name in of_each[0]}


def _filtered_and_processed(task: Any, n: int) -> tuple[Callable[..., Any], ...]:
    """The functions that lm-eval 0.4 calls: the filters once, and then the metrics for each question."""
    apply_filters, process_results = task.apply_filters, task.process_results
    scores: dict[int, dict[str, float]] = {}  # of a question, by the identity of its first filtered answers

    def filtered() -> None:
        for _ in _one_by_one(task.instances, n):
            apply_filters()
        asked: dict[Any, list[Any]] = {}
        for one in sorted(task.instances, key=lambda one: one.idx):
            asked.setdefault(one.doc_id, []).append(one)
        for name in task.instances[0].filtered_resps:
            found = {}
            for own in asked.values():
                results = [one.filtered_resps[name] for one in own]
                of_each = [process_results(own[0].doc, list(each)) for each in zip(*results, strict=True)]
                found[id(results[0])] = summary(of_each)
            scores.update(of_all_questions(found))

    def processed(doc: Any, results: Sequence[Sequence[Any]]) -> dict[str, float]:
        for name in scores[id(results[0])]:
            task.aggregation().setdefault(name, fmean)
            task.higher_is_better().setdefault(name, True)
        return scores[id(results[0])]

    return filtered, processed


def _processed_instances(task: Any, n: int) -> Callable[[], None]:
    """The function that lm-eval 0.5 calls: filters and metrics of all questions, whose scores the scorers keep."""
    process_instances = task.process_instances

    def processed() -> None:
        found = []
        for _ in _one_by_one(task.instances, n):
            process_instances()
            found.append([scorer.raw_docs for scorer in task.scorers])
        for scorer, *of_each in zip(task.scorers, *found, strict=True):
            scores = {key: summary([_of_one(docs[key].scores) for docs in of_each]) for key in of_each[0]}
            scores = of_all_questions(scores)
            scorer.import_reduced(scores)
            known = {metric.name for metric in scorer.metrics}
            for name in dict.fromkeys(name for of_doc in scores.values() for name in of_doc if name not in known):
                scorer.metrics.append(lm_eval_metrics.Metric(name, fmean, aggregation=lm_eval_metrics.mean))

    return processed


def _of_one(scores: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The scores of one answer, which lm-eval 0.5 keeps in lists."""
    return {name: of_answer[0] if len(of_answer) == 1 else of_answer for name, of_answer in scores.items()}


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


def of_all_questions(scores: Mapping[Any, dict[str, float]]) -> dict[Any, dict[str, float]]:
    """The scores without pass@k that some questions lack: means over the others would be of easier or harder ones."""
    partial = {name for own in scores.values() for name in own if "pass@" in name}
    partial = {name for name in partial if not all(name in own for own in scores.values())}
    return {key: {name: one for name, one in own.items() if name not in partial} for key, own in scores.items()}


def pass_at(k: int, n: int, right: int) -> float:
    """The share of choices of `k` among `n` answers that hold a right one, unbiased (Chen et al. 2021, equation 1)."""
    return 1 - comb(n - right, k) / comb(n, k)
