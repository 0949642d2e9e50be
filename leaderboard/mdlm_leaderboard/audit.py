"""`mdlm-leaderboard audit`: the effect of a cache or server on the score, from questions that were decoded twice."""

import json
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.result_file import TaskResult, read_chosen_file
from mdlm_lm_eval.results.samples import metrics_of, new_instance, read_samples, samples_path
from mdlm_lm_eval.results.statistics import clustered_interval, difference, score_of_sets
from mdlm_lm_eval.results.text import markdown_table
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS


def audit(path: Path, include_path: str | None) -> str:
    """A table of a result file's scores, as run and with exact answers; shares are in percent.

    Exact answers are scored with the tasks' own filters and metrics; scores as run are those of the samples. A folder
    stands for its newest file, `include_path` is a folder of further tasks. Raises UnusableFile if the file has no
    audit, or no samples are beside it (lm_eval --log_samples).
    """
    file = read_chosen_file(path)
    audited = [task for task in file.tasks.values() if task.audit]
    if not audited:
        how = "audit" if file.server else "cache_audit"
        raise UnusableFile(f"{file.path!r} holds no audit; run lm_eval with {how} among the model arguments")
    ways = ["served", "--model mdlm"] if file.server else ["with cache", "exact"]
    heads = ["task", "metric", "same strings", *ways, "difference (points)", "95% interval"]
    return markdown_table(heads, [line for task in audited for line in _of_task(file.place, task, include_path)])


@cache
def _manager(include_path: str | None, metadata: str) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=include_path, metadata=json.loads(metadata))


def _of_task(path: Path, result: TaskResult, include_path: str | None) -> list[list[str]]:
    """A line of the table for each metric, over the questions that were audited."""
    samples = samples_path(path, result.name)
    if samples is None:
        raise UnusableFile(f"no samples of {result.name} are beside {str(path)!r}; run lm_eval with --log_samples")
    exact = {one["doc_id"]: one.get("exact") for one in result.audit["exact_answers"]}
    given = DEFAULT_SETTINGS if result.suite else result.metadata  # the rest is the task's own
    metadata = json.dumps({name: result.metadata[name] for name in given if name in result.metadata})
    task = _manager(include_path, metadata).load([result.name])["tasks"][result.name]
    scores: dict[str, list[tuple[Hashable, float, float]]] = {}  # cluster, exact and as run
    for sample in read_samples(samples):
        if sample["doc_id"] not in exact:
            continue
        answer = exact[sample["doc_id"]]
        found: Mapping[str, Any] = sample if answer is None else _score(task, sample, answer)
        cluster = str(sample["doc"].get(result.cluster)) if result.cluster else sample["doc_id"]
        for metric, value in metrics_of(sample).items():
            scores.setdefault(f"{metric},{sample['filter']}", []).append((cluster, float(found[metric]), value))
    same = f"{sum(answer is None for answer in exact.values())} of {len(exact)}"
    return [
        [result.name, metric.removesuffix(",none"), same, *_shown(*zip(*own, strict=True))]
        for metric, own in scores.items()
    ]


def _shown(clusters: Sequence[Hashable], exact: Sequence[float], as_run: Sequence[float]) -> list[str]:
    """The means as run and exactly, and their difference, paired by question; those from 0 to 1 in percent."""
    if all(0 <= score <= 1 for score in (*exact, *as_run)):
        first, second = ({"": [*zip(clusters, own, strict=True)]} for own in (exact, as_run))
        factor, form, points = 100, ".1f", difference(score_of_sets(first), score_of_sets(second)).scaled(100)
    else:
        factor, form = 1, ".4g"
        points = clustered_interval([b - a for a, b in zip(exact, as_run, strict=True)], clusters)
    ends = "–" if points.low is None else f"{points.low:z{form}} to {points.high:z{form}}"
    means = [f"{factor * fmean(scores):{form}}" for scores in (as_run, exact)]
    return [*means, f"{points.mean:+z{form}}", ends]


def _score(task: Any, sample: Mapping[str, Any], answer: str) -> Mapping[str, Any]:
    """The metrics that another answer to a sample's question would get."""
    instance = new_instance("generate_until", sample["doc"], ("", {}), None, sample["doc_id"])
    instance.resps = [answer] * len(sample["resps"][0])
    task._instances = [instance]
    if hasattr(task, "process_instances"):  # since lm-eval 0.5, whose targets may be numbers that no string equals
        target = task.doc_to_target(sample["doc"])
        instance.target = target if isinstance(target, list) else str(target)
        task.process_instances()
        (scorer,) = (scorer for scorer in task.scorers if scorer.name == sample["filter"])
        return dict(scorer.reduced_docs[sample["doc_id"]])
    task.apply_filters()
    return dict(task.process_results(sample["doc"], [instance.filtered_resps[sample["filter"]]]))
