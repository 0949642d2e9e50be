"""lm-eval's result files: finds them, and reads one into a `ResultFile`. All commands read them here."""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from mdlm_lm_eval.options import did_you_mean
from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.names import BUILT_IN, recorded_name
from mdlm_lm_eval.results.recorded import LARGEST, RECORDED, Ranges, check_types
from mdlm_lm_eval.results.redaction import redacted
from mdlm_lm_eval.results.statistics import Interval, Score, answers_per_question
from mdlm_lm_eval.results.suite import SUITE_METRIC, SuiteTask, suite_task
from mdlm_lm_eval.results.text import printable

logger = logging.getLogger(__name__)

# The name of `sampler` in version 0.3, whose "none" is "auto" now. Among typed arguments it may also be LLaDA's name
# of `unmasking`.
OLD_SAMPLER = "remasking"
UNKNOWN = "unknown"  # a decoding option of a server that neither it nor the user stated

# Files that `mdlm-sweep` and reports write beside results.
OTHER_FILES = frozenset(
    f"{name}.json" for name in ("plan", "looks", "report", "attribution_groups", "attribution_examples", "confidence")
)
_NORMAL_95 = 1.96
_OF_THINKING = ("end_think_boost", "max_thinking_tokens")  # which prompts that close thinking have not
_COUNTS = ("drawn", "truncated_prompts", "longer_continuations", "short_answers")
# The parts of a result file whose keys are names of tasks and groups.
_BY_TASK = ("results", "groups", "configs", "versions", "n-shot", "higher_is_better", "n-samples")


@dataclass(frozen=True)
class TaskResult:
    """The results of one task or group. Metrics have lm-eval's names, `metric,filter`.

    config: the task's own settings.

    Only `--model mdlm` records the following:

    options: the decoding or likelihood options in effect.
    effective: the smallest and the largest value of each of `Ranges`, such as steps -> (1, 1).
    cache: the cache in effect (in older files the option).
    cost: what the answers took.
    audit: the findings of `cache_audit`.
    first_token: the record of the likeliest first tokens (`FirstTokens`), if it is of these questions.
    counts: the number of answers that ended in each way; of `truncated_prompts`, which did not fit into the model's
        context and lost their beginning; of `longer_continuations`, which were longer than `n_masks` and were scored at
        their own lengths; of `short_answers`, which a server ended before they had all tokens; of `drawn`,
        which depend on the seed.
    """

    name: str
    version: str
    shots: int
    metrics: Mapping[str, float]
    standard_errors: Mapping[str, float]
    higher_is_better: Mapping[str, bool | None]
    n_questions: int
    n_original: int
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]
    effective: Mapping[str, tuple[int, int]]
    cache: str | None
    cost: Mapping[str, float]
    audit: Mapping[str, Any]
    first_token: Mapping[str, Any]
    counts: Counter[str]

    @cached_property
    def suite(self) -> SuiteTask | None:
        """The task of the few-shot suite that this is; None for any other."""
        return suite_task(self.name)

    @property
    def repeats(self) -> int:
        """The number of times that each question was asked."""
        return max(self.config.get("repeats", 1), 1)

    @property
    def cluster(self) -> str:
        """The field of documents whose equal values make questions one cluster, as the task's metadata declare it."""
        return str(self.metadata.get("cluster") or "")

    @property
    def has_several_tokens(self) -> bool:
        """Whether an answer may have more than one token."""
        return self.effective.get("returned_tokens", (0, 0))[1] > 1

    def is_accuracy(self, metric: str) -> bool:
        """Whether this score is a share from 0 to 1, and a higher one is better."""
        return 0 <= self.metrics[metric] <= 1 and bool(self.higher_is_better.get(metric.partition(",")[0], True))

    def share(self, metric: str) -> Score | None:
        """The score as a share of independent questions, with lm-eval's standard error.

        None if there is no standard error, questions are clustered, or the score is not a share.
        """
        mean, error, n = self.metrics[metric], self.standard_errors.get(metric), self.n_questions
        if error is None or self.cluster or not 0 <= mean <= 1 or not n:
            return None
        answers = n * answers_per_question([mean * n], self.repeats)  # a sheet's score is the share of its slots
        return Score(mean, max(error**2, answers**-2), answers, n)

    def interval(self, metric: str) -> Interval:
        """The interval of a score that is not a share: 1.96 standard errors to each side, if that is not 0.

        It has no ends if questions are clustered: the standard error takes them as independent.
        """
        mean, error = self.metrics[metric], self.standard_errors.get(metric)
        if not error or self.cluster:
            return Interval(mean)
        return Interval(mean, mean - _NORMAL_95 * error, mean + _NORMAL_95 * error)


@dataclass(frozen=True)
class ResultFile:
    """One result file, read from `place`.

    config: lm-eval's own settings.
    model, adapter: `built-in`, a hub id or a folder's last part.
    mdlm: the record of `--model mdlm` or `--model mdlm-server`; empty for other models.
    template: the beginning of the chat template's digest; "" without one.
    says_prompts: whether it says if prompts had a system instruction: only with lm-eval's `evaluation_tracker`.
    groups: lm-eval's groups with their members.
    """

    path: str
    place: Path
    config: Mapping[str, Any]
    model_kind: str
    model: str
    adapter: str | None
    model_args: Mapping[str, Any]
    gen_kwargs: Mapping[str, Any]
    mdlm: Mapping[str, Any]
    dtype: str
    limit: float | None
    chat_template: bool
    template: str
    fewshot_as_multiturn: bool
    system_instruction: str | None
    says_prompts: bool
    versions: Mapping[str, str | None]
    date: str
    suite_hash: str | None
    tasks: Mapping[str, TaskResult]
    group_results: Mapping[str, TaskResult]
    groups: Mapping[str, tuple[str, ...]]

    def tasks_of(self, result: TaskResult) -> list[TaskResult]:
        """The tasks of a group, or the task itself."""
        if result.name not in self.groups:
            return [result]
        return [self.tasks[name] for name in leaves(result.name, self.groups)]

    @property
    def top(self) -> list[TaskResult]:
        """The groups with a score and the tasks that are inside no other group with a score."""
        inside = {member for group in self.group_results for member in self.groups[group]}
        return [one for one in (*self.group_results.values(), *self.tasks.values()) if one.name not in inside]

    @property
    def trained(self) -> tuple[str, int | None]:
        """Recipe and seed of the adapter, whose name holds both: "SFT, seed 1". An empty recipe without an adapter."""
        found = re.fullmatch(r"(.*), seed (\d+)", self.adapter or "")
        return (found[1], int(found[2])) if found else (self.adapter or "", None)

    @property
    def server(self) -> Mapping[str, Any]:
        """The record of the engine that decoded (`--model mdlm-server`); empty if this package decoded."""
        return self.mdlm.get("server") or {}

    @property
    def served_by(self) -> str:
        """The engine and its version, such as "sglang 0.5.23"; "" if this package decoded."""
        return served_in_words(self.server) if self.server else ""


def served_in_words(server: Mapping[str, Any]) -> str:
    """The engine of a server's record, and its version."""
    version = f", version {UNKNOWN}" if server["version"] == UNKNOWN else f" {server['version']}"
    template = " by its own chat template" if "chat_template" in server else ""
    engine = "an OpenAI-compatible server" if server["engine"] == "openai" else server["engine"]
    return f"{engine}{version}{template}"


def find_result_files(folder: Path, *, leave_out: Path | None = None) -> list[Path]:
    """All `*.json` and `*.json.gz` under `folder`, sorted, but for hidden files, plans, analyses and `leave_out`."""
    paths = (*folder.rglob("*.json"), *folder.rglob("*.json.gz"))
    found = [path for path in paths if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    left_out = [path for path in found if leave_out and Path(os.path.realpath(path)).is_relative_to(leave_out)]
    return sorted(path for path in found if path.name not in OTHER_FILES and path not in left_out)


def missing(path: Path) -> str:
    """What an error says of a path that does not exist; it asks for a name beside it that is spelt alike."""
    hint = did_you_mean(path.name, [one.name for one in path.parent.glob("*")])
    return f"does not exist; {printable(hint)}" if hint else "does not exist"


def read_chosen_file(path: Path, *, is_compared: bool = False) -> ResultFile:
    """Reads a result file, or the newest one in a folder. Raises UnusableFile, which names the file.

    A folder whose results lie in several folders is refused if the result is compared: the newest may be any of them.
    """
    if not path.exists():
        raise UnusableFile(f"{path} {missing(path)}")
    files = [file for file in find_result_files(path) if file.is_file()] if path.is_dir() else [path]
    if not files:
        raise UnusableFile(f"{path} holds no result file")
    newest = max(files, key=lambda file: file.stat().st_mtime)
    folders = sorted({file.parent for file in files})
    if is_compared and len(folders) > 1:
        raise UnusableFile(f"{path} holds results in {len(folders)} folders; name one, such as {folders[-1]}")
    if len(files) > 1:
        logger.warning("%s is the newest of %d files in %s", printable(str(newest)), len(files), path)
    try:
        return read_result_file(newest)
    except UnusableFile as error:
        raise UnusableFile(f"{newest} {error}") from error


def read_result_file(path: Path, name: str | None = None) -> ResultFile:
    """Reads one file without its secrets (`redacted`). The result's `path` is `name`, by default the file's path.

    Raises UnusableFile, and no other exception, if the file cannot be used.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not {"results", "config"} <= content.keys():
        raise UnusableFile("is no result file of lm-eval, which has 'results' and 'config'")
    content = redacted(content)
    check_types(content, RECORDED)
    try:
        return _parsed({**content, **_by_plain_names(content)}, path, name or str(path))
    except KeyError as error:  # a task or group that another part of the file names
        raise UnusableFile(f"names {error} in one place and lacks it in another") from error


def _by_plain_names(content: Mapping[str, Any]) -> dict[str, Any]:
    """The parts by task under the tasks' own names: lm-eval 0.5 calls the task of a group `group::task`."""

    def plain(name: str) -> str:
        return name.rpartition("::")[2]

    found = {part: {plain(name): one for name, one in content[part].items()} for part in _BY_TASK if part in content}
    members = content.get("group_subtasks", {}).items()
    return found | {"group_subtasks": {plain(group): [*map(plain, names)] for group, names in members}}


def leaves(group: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group and of the groups inside it."""
    return [leaf for name in groups[group] for leaf in (leaves(name, groups) if name in groups else [name])]


def _parsed(content: Mapping[str, Any], place: Path, name: str) -> ResultFile:
    config = content["config"]
    mdlm = config.get("mdlm") or {}
    arguments = mdlm["arguments"] if "arguments" in mdlm else _arguments(config.get("model_args"))
    template = mdlm["chat_template_sha"] if "chat_template_sha" in mdlm else content.get("chat_template_sha")
    groups = _members_of_groups(content)
    tasks = {task: _task(content, task) for task in content["configs"]}
    if not any(task.metrics for task in tasks.values()):
        raise UnusableFile("has no score")
    limit, date = config.get("limit"), content.get("date")
    model, adapter = _model_and_adapter(mdlm, arguments, config["model"])
    return ResultFile(
        path=name,
        place=place,
        config=config,
        # lm-eval knows no name of a model that it got as an object.
        model_kind=("mdlm-server" if mdlm.get("server") else "mdlm") if mdlm else config["model"],
        model=model,
        adapter=adapter,
        model_args=arguments,
        gen_kwargs=_arguments(config.get("gen_kwargs")),
        mdlm=mdlm,
        dtype=(config.get("model_dtype") or "").removeprefix("torch."),
        limit=None if limit is None or all(t.n_questions == t.n_original for t in tasks.values()) else float(limit),
        chat_template=bool(template or content.get("chat_template")),
        template=str(template or "")[:7],
        fewshot_as_multiturn=content.get("fewshot_as_multiturn") is not False,
        system_instruction=content.get("system_instruction") or None,
        says_prompts=bool(content.get("model_source")),
        versions={name: content.get(f"{name}_version") for name in ("lm_eval", "transformers")},
        date="" if date is None else datetime.fromtimestamp(date, UTC).isoformat(timespec="seconds"),
        suite_hash=(mdlm.get("task_suite") or {}).get("sha256"),
        tasks=tasks,
        group_results={group: _group(content, group, groups, tasks) for group in content.get("groups", ())},
        groups=groups,
    )


def _members_of_groups(content: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The members of each group that has any. Raises UnusableFile if groups are in each other."""
    groups = {group: tuple(members) for group, members in content.get("group_subtasks", {}).items() if members}
    try:
        TopologicalSorter(groups).prepare()
    except CycleError as error:
        raise UnusableFile(f"has groups that are in each other: {', '.join(error.args[1])}") from error
    return groups


def _model_and_adapter(mdlm: Mapping[str, Any], arguments: Mapping[str, Any], kind: str) -> tuple[str, str | None]:
    """As our models record them; for others, as their arguments name them, or else the kind of model."""
    if mdlm:
        model, adapter = mdlm["pretrained"] or BUILT_IN, mdlm["adapter"]
    else:
        names = [arguments.get(key) for key in ("pretrained", "model", "path")]
        model, adapter = next(filter(None, names), kind), arguments.get("peft")
    return recorded_name(str(model)), adapter and recorded_name(str(adapter))


def _arguments(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The arguments as a dictionary: a call from Python may have given lm-eval `name=value,name=value`."""
    if isinstance(given, str):
        return {name: value for name, _, value in (part.partition("=") for part in given.split(",")) if name}
    return dict(given or {})


def _task(content: Mapping[str, Any], name: str) -> TaskResult:
    config, counts, mdlm = content["configs"][name], content["n-samples"][name], content["config"].get("mdlm") or {}
    recorded = mdlm.get("tasks", {}).get(name, {})
    settings = [one["options"] for one in mdlm.get("settings", ()) if name in one["tasks"]]
    if mdlm and not settings:
        raise UnusableFile(f"states no settings of {name!r}")
    options = renamed_options(_merged(name, settings)) if settings else {}
    metrics = _metrics(content["results"][name], content.get("higher_is_better", {}).get(name, {}))
    score = metrics["metrics"].get(SUITE_METRIC, 0)
    # A request cache also holds the answers to questions of other runs, such as one with a larger --limit.
    n_answers, first_token = counts["effective"] * max(config.get("repeats", 1), 1), recorded.get("first_token") or {}
    is_own = len(first_token.get("letters", "")) == n_answers
    if suite_task(name) and not 0 <= score <= 1:
        raise UnusableFile(f"has exact_match={score} for {name!r}; it must be a number from 0 to 1")
    return TaskResult(
        name=name,
        version=str(content["versions"][name]),
        shots=content["n-shot"][name],
        n_questions=counts["effective"],
        n_original=counts["original"],
        config=config,
        metadata=config.get("metadata") or {},
        options=options,
        effective={key: (recorded[key][0], recorded[key][1]) for key in Ranges.__annotations__ if key in recorded},
        cache=recorded.get("cache", options.get("cache")),
        cost={"requests": recorded.get("requests", 0), **recorded.get("cost", {})},
        audit=recorded.get("audit") or {},
        first_token=first_token if is_own else {},
        counts=Counter({**recorded.get("endings", {}), **{key: recorded.get(key, 0) for key in _COUNTS}}),
        **metrics,
    )


def _merged(task: str, settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of a task. Those about thinking are not set for its prompts that close thinking.

    Raises UnusableFile if an option was set to several values, as in a request cache of two runs.
    """
    merged = dict(settings[0])
    for one in settings[1:]:
        for name, value in one.items():
            before = merged.get(name)
            if value == before:
                continue
            if name not in _OF_THINKING or (value and before):
                raise UnusableFile(f"records {name}={before} and {name}={value} for {task!r} (use_cache of two runs)")
            merged[name] = before if value is None else before or value
    return merged


def _shared(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all mappings have."""
    return {name: value for name, value in found[0].items() if all(one.get(name) == value for one in found)}


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
        metadata=_shared([task.metadata for task in members]),
        options=_shared([task.options for task in members]),
        effective={
            key: (min(of[key][0] for of in ranges), max(of[key][1] for of in ranges))
            for key in set(first.effective).intersection(*ranges)
        },
        cost={
            key: (max if key == "peak_memory_bytes" else sum)(cost[key] for cost in costs)
            for key in set(costs[0]).intersection(*costs)
            if not key.endswith(("_per_forward", "_occupancy"))  # ratios of other keys
        },
        cache=" and ".join(sorted({task.cache for task in members if task.cache})) or None,
        audit={},
        first_token={},
        counts=sum((task.counts for task in members), Counter[str]()),
        **_metrics(content["groups"][name], first.higher_is_better),
    )


def _metrics(result: Mapping[str, Any], higher_is_better: Mapping[str, bool | None]) -> dict[str, Any]:
    numbers = {key: value for key, value in result.items() if "," in key and type(value) in (int, float)}
    finite = {key: float(value) for key, value in numbers.items() if abs(value) <= LARGEST}  # no nan, either
    errors = {key.replace("_stderr,", ","): value for key, value in finite.items() if "_stderr," in key and value >= 0}
    return {
        "metrics": {key: value for key, value in finite.items() if "_stderr," not in key},
        "standard_errors": errors,
        "higher_is_better": higher_is_better,
    }


# What earlier versions wrote


def renamed_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Returns recorded options under their names of today."""
    options = dict(recorded)
    if OLD_SAMPLER in options:
        before = options.pop(OLD_SAMPLER)
        options["sampler"] = "auto" if before == "none" else before
    options.pop("drafts", None)  # of states between 0.3 and 0.4, which changed no answer
    return options


def has_fault(check: Mapping[str, Any]) -> bool:
    """Returns whether `mdlm-check` found a fault, which its recorded verdict begins with."""
    return str(check["verdict"]).startswith("fault")
