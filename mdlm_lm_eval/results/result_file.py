"""lm-eval's result files: where they lie, and what is kept of one. Everybody who reads one reads it here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.names import BUILT_IN, recorded_name
from mdlm_lm_eval.results.statistics import Interval, interval_over_tasks
from mdlm_lm_eval.results.suite import suite_task

LM_EVAL_SEEDS = (0, 1234, 1234, 1234)  # its defaults, of Python, numpy, torch and few-shot samples
UNKNOWN = "unknown"  # a decoding option of a server that neither it nor the user stated
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class TaskResult:
    """What one task or group reports. Metrics are named as lm-eval does, `metric,filter`.

    `config` is the task's own. Of `--model mdlm` only: `options` are the decoding or likelihood options in effect,
    `effective` the ranges that it recorded, such as steps -> (1, 1) and asked_masks -> the fewest and the most masks
    that were asked for, `cache` the one in effect (the option, in older files), `cost` what the answers took, `audit`
    what `cache_audit` found. `truncated_prompts` of its prompts did not fit into the model's context and lost their
    beginning.
    """

    name: str
    version: str
    shots: int
    metrics: Mapping[str, float]
    standard_errors: Mapping[str, float]
    higher_is_better: Mapping[str, bool]
    n_questions: int
    n_original: int
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]
    effective: Mapping[str, tuple[int, int]]
    cache: str | None
    cost: Mapping[str, float]
    audit: Mapping[str, Any]
    truncated_prompts: int

    def is_accuracy(self, metric: str) -> bool:
        """Whether this score is a share from 0 to 1 of which more is better."""
        return 0 <= self.metrics[metric] <= 1 and self.higher_is_better.get(metric.partition(",")[0], True)


@dataclass(frozen=True)
class ResultFile:
    """One result file, read from `place`. `groups` are lm-eval's groups with their members.

    `mdlm` is what `--model mdlm` recorded, `config` is lm-eval's own; `model` is `built-in`, a hub id or a folder's
    last part, `adapter` likewise.
    """

    path: str
    place: Path
    config: Mapping[str, Any]
    model_kind: str
    model: str
    adapter: str | None
    model_args: Mapping[str, Any]
    gen_kwargs: Mapping[str, Any]
    mdlm: Mapping[str, Any] | None
    sweep: Mapping[str, Any]
    dtype: str
    limit: float | None
    chat_template: bool
    fewshot_as_multiturn: bool
    system_instruction: str | None
    versions: Mapping[str, str | None]
    date: str
    suite_hash: str | None
    tasks: Mapping[str, TaskResult]
    group_results: Mapping[str, TaskResult]
    groups: Mapping[str, tuple[str, ...]]

    @property
    def server(self) -> Mapping[str, Any]:
        """What `--model mdlm-server` recorded of the engine that decoded; empty where this package did."""
        return (self.mdlm or {}).get("server") or {}

    @property
    def served_by(self) -> str:
        """The engine and its version, such as "sglang 0.5.23"; "" where this package decoded."""
        version = self.server.get("version")
        known = f", version {UNKNOWN}" if version == UNKNOWN else f" {version}"
        return f"{self.server['engine']}{known}" if version else ""

    def interval(self, result: TaskResult, metric: str) -> Interval:
        """A score with its 95% interval: over tasks, clustered by word rule, for groups of the few-shot suite; else
        1.96 standard errors over questions.
        """
        members = [self.tasks[name] for name in leaves(result.name, self.groups)] if result.name in self.groups else []
        if members and all(suite_task(task.name) and metric in task.metrics for task in members):
            return interval_over_tasks({task.name: task.metrics[metric] for task in members})
        mean, error = result.metrics[metric], result.standard_errors.get(metric)
        half = None if error is None else _NORMAL_95 * error
        return Interval(mean, None if half is None else mean - half, None if half is None else mean + half, 1)


def find_result_files(folder: Path, *, leave_out: Path | None = None) -> list[Path]:
    """All `*.json` files under `folder`, sorted, except hidden ones and those under `leave_out`."""
    found = [path for path in folder.rglob("*.json") if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    return sorted(path for path in found if not (leave_out and path.resolve().is_relative_to(leave_out)))


def read_result_file(path: Path, name: str | None = None) -> ResultFile:
    """Reads one file, which is called `name` (its path by default) from then on. Raises UnusableFile."""
    content = read_json(path)
    if not isinstance(content, dict) or not {"results", "config"} <= content.keys():
        raise UnusableFile("is no result file of lm-eval, which has 'results' and 'config'")
    try:
        return _parse(content, path, name or str(path))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UnusableFile(f"differs from the result files that this version reads ({what})") from error


def leaves(group: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group and of the groups inside it."""
    return [leaf for name in groups[group] for leaf in (leaves(name, groups) if name in groups else [name])]


def _parse(content: Mapping[str, Any], place: Path, name: str) -> ResultFile:
    config: Mapping[str, Any] = content["config"]
    mdlm, arguments = config.get("mdlm"), dict(config.get("model_args") or {})
    groups = {group: tuple(members) for group, members in content.get("group_subtasks", {}).items() if members}
    tasks = {task: _task(content, task, mdlm or {}) for task in content["configs"]}
    limit = config.get("limit")
    given = next((arguments[key] for key in ("pretrained", "model", "path") if arguments.get(key)), config["model"])
    model, adapter = (mdlm["pretrained"] or BUILT_IN, mdlm["adapter"]) if mdlm else (given, arguments.get("peft"))
    return ResultFile(
        path=name,
        place=place,
        config=config,
        model_kind=config["model"],
        model=recorded_name(model),
        adapter=adapter and recorded_name(adapter),
        model_args=arguments,
        gen_kwargs=dict(config.get("gen_kwargs") or {}),
        mdlm=mdlm,
        sweep=config.get("mdlm_sweep") or {},
        dtype=str(config.get("model_dtype", "")).removeprefix("torch."),
        limit=None if limit is None or all(t.n_questions == t.n_original for t in tasks.values()) else float(limit),
        chat_template=bool(content.get("chat_template")),
        fewshot_as_multiturn=bool(content.get("fewshot_as_multiturn")),
        system_instruction=content.get("system_instruction") or None,
        versions={package: content.get(f"{package}_version") for package in ("lm_eval", "transformers")},
        date=datetime.fromtimestamp(content["date"], UTC).isoformat(timespec="seconds") if "date" in content else "",
        suite_hash=((mdlm or {}).get("task_suite") or {}).get("sha256"),
        tasks=tasks,
        group_results={group: _group(content, group, groups, tasks) for group in content.get("groups", {})},
        groups=groups,
    )


def _task(content: Mapping[str, Any], name: str, mdlm: Mapping[str, Any]) -> TaskResult:
    config, counts = content["configs"][name], content["n-samples"][name]
    recorded = mdlm.get("tasks", {}).get(name, {})
    ranges = {key: value for key, value in recorded.items() if isinstance(value, list) and key != "trace"}
    settings = mdlm["settings"] if mdlm else ()
    options: Mapping[str, Any] = next((one["options"] for one in settings if name in one["tasks"]), {})
    return TaskResult(
        name=name,
        version=str(content["versions"][name]),
        shots=int(content["n-shot"][name]),
        n_questions=int(counts["effective"]),
        n_original=int(counts["original"]),
        config=config,
        metadata=config.get("metadata") or {},
        options=options,
        effective={key: (value[0], value[1]) for key, value in ranges.items()},
        cache=recorded.get("cache", options.get("cache")),
        cost={**recorded.get("cost", {}), **({"requests": recorded["requests"]} if "requests" in recorded else {})},
        audit=recorded.get("audit") or {},
        truncated_prompts=recorded.get("truncated_prompts", 0),
        **_metrics(content["results"][name], content.get("higher_is_better", {}).get(name, {})),
    )


def _group(
    content: Mapping[str, Any], name: str, groups: Mapping[str, Sequence[str]], tasks: Mapping[str, TaskResult]
) -> TaskResult:
    members = [tasks[task] for task in leaves(name, groups)]
    first, ranges, costs = members[0], [task.effective for task in members], [task.cost for task in members]
    return replace(
        first,
        name=name,
        version=str(content["versions"].get(name, first.version)),
        n_questions=sum(task.n_questions for task in members),
        n_original=sum(task.n_original for task in members),
        metadata={},
        effective={
            key: (min(of[key][0] for of in ranges), max(of[key][1] for of in ranges))
            for key in set(first.effective).intersection(*ranges)
        },
        cost={
            key: (max if key == "peak_memory_bytes" else sum)(cost[key] for cost in costs)
            for key in set(costs[0]).intersection(*costs)
            if not key.endswith(("_per_forward", "_occupancy"))  # ratios of these
        },
        audit={},
        truncated_prompts=sum(task.truncated_prompts for task in members),
        **_metrics(content["groups"][name], first.higher_is_better),
    )


def _metrics(result: Mapping[str, Any], higher_is_better: Mapping[str, bool]) -> dict[str, Any]:
    values = {key: value for key, value in result.items() if "," in key and isinstance(value, int | float)}
    finite = {key: float(value) for key, value in values.items() if math.isfinite(value)}
    return {
        "metrics": {key: value for key, value in finite.items() if "_stderr," not in key},
        "standard_errors": {key.replace("_stderr,", ","): value for key, value in finite.items() if "_stderr," in key},
        "higher_is_better": higher_is_better,
    }
