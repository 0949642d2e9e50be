"""lm-eval's result files: where they lie, and what is kept of one. Everybody who reads one reads it here."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdlm_lm_eval.options import DecodingOptions, about, options_of, requirement
from mdlm_lm_eval.results.files import UnusableFile, read_json
from mdlm_lm_eval.results.privacy import published, published_command, published_instruction, published_text
from mdlm_lm_eval.values import OptionError, must_be, shown

if TYPE_CHECKING:
    from lm_eval.result_schema import EvalResults

READABLE_LM_EVAL = "0.4"
_SHA256 = re.compile("[0-9a-f]{64}")
_READABLE_VERSION = re.compile(rf"{re.escape(READABLE_LM_EVAL)}(\.[\w.+-]*)?")
# Control characters beside those of lines, and those that turn the direction of what stands around them.
_UNSHOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_MOST = 10**9  # masks, steps or tokens of a request
_LONGEST_OPTION = 1000  # characters, of which a board's tables and headings are made


@dataclass(frozen=True)
class TaskResult:
    """What one task or group reports. Metrics are named as lm-eval does, `metric,filter`.

    `generation` is the task's generation_kwargs, with the run's own; `effective` the ranges that `--model mdlm`
    recorded, such as masks -> (200, 200), `cost` what its answers took (results/cost.py), empty where nobody counted.
    `truncated_prompts` of its prompts did not fit into the model's context and lost their beginning.
    """

    name: str
    version: str
    shots: int
    metrics: Mapping[str, float]
    standard_errors: Mapping[str, float]
    higher_is_better: Mapping[str, bool]
    n_questions: int
    n_original: int
    output_type: str
    generation: Mapping[str, Any]
    metadata: Mapping[str, Any]
    effective: Mapping[str, tuple[int, int]]
    cost: Mapping[str, float]
    truncated_prompts: int
    unsafe_code: bool

    def is_accuracy(self, metric: str) -> bool:
        """Whether this score is a share from 0 to 1 of which more is better."""
        return 0 <= self.metrics[metric] <= 1 and self.higher_is_better.get(metric.partition(",")[0], True)


@dataclass(frozen=True)
class ResultFile:
    """One result file, without secrets and paths of the machine that wrote it.

    `groups` are lm-eval's groups with their members, `mdlm` is what `--model mdlm` recorded. `folders` has the names of
    model and adapter as they were given, paths included: they may tell two models apart, and are never shown.
    """

    path: str
    model_kind: str
    model_args: Mapping[str, Any]
    gen_kwargs: Mapping[str, Any]
    mdlm: Mapping[str, Any] | None
    sweep: Mapping[str, Any]
    run_options: Mapping[str, Any]
    dtype: str
    limit: float | None
    chat_template: bool
    fewshot_as_multiturn: bool
    system_instruction: str | None
    versions: Mapping[str, str]
    date: str
    suite_hash: str | None
    folders: tuple[str, str]
    tasks: Mapping[str, TaskResult]
    group_results: Mapping[str, TaskResult]
    groups: Mapping[str, tuple[str, ...]]


def find_result_files(folder: Path, *, leave_out: Path | None = None) -> list[Path]:
    """All `*.json` files under `folder`, sorted, except hidden ones and those under `leave_out`."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and (leave_out is None or Path(parent, name).resolve() != leave_out)
        ]
        found += [Path(parent, name) for name in names if name.endswith(".json") and not name.startswith(".")]
    return sorted(found)


def read_result_file(path: Path, name: str | None = None) -> ResultFile:
    """Reads one file, which is called `name` (its path by default) from then on. Raises UnusableFile."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict) or "config" not in content:
        raise UnusableFile("is no result file of lm-eval, which has 'results' and 'config'")
    _check_version(content)
    with unusable_if_different():
        return _parse(content, name or str(path))


@contextmanager
def unusable_if_different() -> Iterator[None]:
    """Turns what a file of another layout provokes into UnusableFile."""
    try:
        yield
    except UnusableFile:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"[:200]
        raise UnusableFile(f"differs from the result files of lm-eval {READABLE_LM_EVAL} ({what!r})") from error


def is_number(value: object) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def leaves(group: str, groups: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The tasks of a group and of the groups inside it."""
    return [leaf for name in groups[group] for leaf in (leaves(name, groups) if name in groups else [name])]


def _check_version(content: Mapping[str, Any]) -> None:
    version = content.get("lm_eval_version")
    if not isinstance(version, str):
        raise UnusableFile(f"names no lm_eval_version; it must be a result file of lm-eval {READABLE_LM_EVAL}")
    if not _READABLE_VERSION.fullmatch(version):
        raise UnusableFile(f"was written by lm-eval {shown(version[:40])}; it must be {READABLE_LM_EVAL}")


def _parse(content: "EvalResults", name: str) -> ResultFile:
    raw: Mapping[str, Any] = content["config"]
    config = published(raw)
    mdlm, sweep = config.get("mdlm"), dict(config.get("mdlm_sweep") or {})
    if isinstance(sweep.get("command"), str):
        sweep["command"] = published_command(raw["mdlm_sweep"]["command"])
    _check_decoding((mdlm or {}).get("decoding") or {})
    for option, value in ((mdlm or {}).get("likelihood") or {}).items():
        if isinstance(value, Mapping | list):
            raise UnusableFile(f"records likelihood options that cannot be: {option}={shown(value)}")
    # Of what a task recorded only numbers are shown; a model's own words are there, too.
    _check_texts([config | {"mdlm": {key: value for key, value in (mdlm or {}).items() if key != "tasks"}}])
    _check_texts([content.get(name) for name in ("system_instruction", "transformers_version", "pretty_env_info")])
    _check_texts([content["results"], content.get("group_subtasks")])  # for the names in them
    if not isinstance(config["model"], str):
        raise UnusableFile(f"has model={shown(config['model'])}; it must be a name")
    groups = {group: tuple(members) for group, members in content.get("group_subtasks", {}).items() if len(members) > 0}
    tasks = {task: _task(content, task, mdlm or {}) for task in content["configs"]}
    if not tasks:
        raise UnusableFile("holds no task")
    suite_hash = ((mdlm or {}).get("task_suite") or {}).get("sha256")
    if suite_hash is not None and not (isinstance(suite_hash, str) and _SHA256.fullmatch(suite_hash)):
        raise UnusableFile(f"records task_suite.sha256={shown(suite_hash)}; it must be 64 hexadecimal digits")
    return ResultFile(
        path=name,
        model_kind=config["model"],
        model_args=_arguments(config.get("model_args")),
        gen_kwargs=_arguments(config.get("gen_kwargs")),
        mdlm={key: value for key, value in mdlm.items() if key != "tasks"} if mdlm else None,
        sweep=sweep,
        run_options={
            key: config.get(key)
            for key in ("batch_size", "device", "random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
        },
        dtype=str(config.get("model_dtype", "")).removeprefix("torch."),
        limit=_limit(config.get("limit"), tasks.values()),
        chat_template=bool(content.get("chat_template")),
        fewshot_as_multiturn=bool(content.get("fewshot_as_multiturn")),
        system_instruction=published_instruction(str(content.get("system_instruction") or "")) or None,
        versions=_versions(content, mdlm or {}),
        date=_date(content.get("date")),
        suite_hash=suite_hash,
        folders=_given_names(raw),
        tasks=tasks,
        group_results={group: _group(content, group, groups, tasks) for group in content.get("groups", {})},
        groups=groups,
    )


def _check_decoding(recorded: Mapping[str, Any]) -> None:
    """Raises UnusableFile for values that no run can have had. Rules may be another package's, which is not here."""
    for declared in options_of(DecodingOptions):
        name, value = declared.name, recorded.get(declared.name, declared.default)
        try:
            if about(declared).choices is not None:
                if not isinstance(value, str):
                    raise must_be(name, "a text", json.dumps(value))
            elif vars(DecodingOptions().override({name: value}))[name] != value:  # text, as typed
                raise must_be(name, requirement(declared), json.dumps(value))
        except OptionError as error:
            raise UnusableFile(f"records what cannot be: {error}") from error
    for name, value in recorded.items():
        if len(f"{name}={value}") > _LONGEST_OPTION:
            raise UnusableFile(f"records {shown(name)}={shown(value)}; at most {_LONGEST_OPTION} characters are shown")


def _check_texts(value: object) -> None:
    """Raises UnusableFile where any text has characters that are not shown."""
    if isinstance(value, str):
        if _UNSHOWN.search(value):
            raise UnusableFile(f"holds {shown(value)}; control characters are not shown")
    elif isinstance(value, Mapping):
        _check_texts([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for inner in value:
            _check_texts(inner)


def _task(content: Mapping[str, Any], name: str, mdlm: Mapping[str, Any]) -> TaskResult:
    config, counts = content["configs"][name], content["n-samples"][name]
    effective = mdlm.get("tasks", {}).get(name, {})
    return TaskResult(
        name=name,
        version=str(content["versions"][name]),
        shots=int(content["n-shot"][name]),
        n_questions=int(counts["effective"]),
        n_original=int(counts["original"]),
        output_type=str(config.get("output_type", "")),
        generation=dict(config.get("generation_kwargs") or {}),
        metadata=published(dict(config.get("metadata") or {})),
        effective={
            key: _range(name, key, value, least=int(key == "masks" and config.get("output_type") == "generate_until"))
            for key, value in effective.items()
            if isinstance(value, list)
        },
        cost=_cost(effective),
        truncated_prompts=int(effective.get("truncated_prompts", 0)),
        unsafe_code=bool(config.get("unsafe_code")),
        **_metrics(content["results"][name], content.get("higher_is_better", {}).get(name, {})),
    )


def _range(task: str, name: str, bounds: list[Any], *, least: int) -> tuple[int, int]:
    low, high = int(bounds[0]), int(bounds[1])
    if not least <= low <= high <= _MOST:
        raise UnusableFile(f"records {name}={shown(bounds)} for {task!r}, which no run can have had")
    return low, high


def _group(
    content: Mapping[str, Any], name: str, groups: Mapping[str, tuple[str, ...]], tasks: Mapping[str, TaskResult]
) -> TaskResult:
    members = [tasks[task] for task in leaves(name, groups)]
    shots, versions = {task.shots for task in members}, content["versions"]
    if len(shots) > 1:
        raise UnusableFile(f"mixes {sorted(shots)} shots in the group {name!r}; it must be one number of shots")
    return TaskResult(
        name=name,
        version=str(versions[name] if name in versions else members[0].version),
        shots=shots.pop(),
        n_questions=sum(task.n_questions for task in members),
        n_original=sum(task.n_original for task in members),
        output_type=members[0].output_type,
        generation=members[0].generation,
        metadata={},
        effective=_widest([task.effective for task in members]),
        cost=_sum_of_costs([task.cost for task in members]),
        truncated_prompts=sum(task.truncated_prompts for task in members),
        unsafe_code=False,
        **_metrics(content["groups"][name], members[0].higher_is_better),
    )


def _widest(ranges: list[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    names = set(ranges[0]).intersection(*ranges)
    return {name: (min(one[name][0] for one in ranges), max(one[name][1] for one in ranges)) for name in sorted(names)}


def _cost(recorded: Mapping[str, Any]) -> dict[str, float]:
    amounts = {**recorded.get("cost", {}), "requests": recorded.get("requests")}
    return {name: float(amount) for name, amount in amounts.items() if is_number(amount)}


def _sum_of_costs(costs: list[Mapping[str, float]]) -> dict[str, float]:
    """Of a group: sums, except where a member counted nothing."""
    names = set(costs[0]).intersection(*costs)
    return {name: sum(cost[name] for cost in costs) for name in sorted(names)}


def _metrics(result: Mapping[str, Any], higher_is_better: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in result.items() if "," in key and is_number(value)}
    errors = {key: value for key, value in values.items() if "_stderr," in key}
    return {
        "metrics": {key: float(value) for key, value in values.items() if key not in errors},
        "standard_errors": {key.replace("_stderr,", ","): float(value) for key, value in errors.items()},
        "higher_is_better": {key: value is True for key, value in higher_is_better.items()},
    }


def _arguments(arguments: object) -> dict[str, Any]:
    """Model arguments or gen_kwargs, which lm-eval before 0.4.9 kept as `name=value,name=value`."""
    if isinstance(arguments, str):
        pairs = [pair.partition("=") for pair in arguments.split(",") if pair]
        arguments = {name: value for name, _, value in pairs}
    return dict(arguments or {})  # type: ignore[call-overload]


def _given_names(config: Mapping[str, Any]) -> tuple[str, str]:
    """Of model and adapter, "" where the file has none."""
    mdlm, arguments = config.get("mdlm") or {}, _arguments(config.get("model_args"))
    keys = ("pretrained", "model", "path", "engine")
    model = mdlm.get("pretrained") or next((arguments[key] for key in keys if key in arguments), None)
    names = model or "", mdlm.get("adapter") or arguments.get("peft") or ""
    for name in names:
        if not isinstance(name, str):
            raise UnusableFile(f"names a model {shown(name)}; it must be a text")
    return names


def _limit(limit: object, tasks: Iterable[TaskResult]) -> float | None:
    """None where all questions were asked, whatever limit was given."""
    if limit is None:
        return None
    if not is_number(limit):
        raise UnusableFile(f"has limit={limit!r}; it must be a number or null")
    if all(task.n_questions == task.n_original for task in tasks):
        return None
    return float(limit)  # type: ignore[arg-type]


def _versions(content: Mapping[str, Any], mdlm: Mapping[str, Any]) -> dict[str, str]:
    environment = str(content.get("pretty_env_info") or "")
    facts = dict(line.split(": ", 1) for line in environment.splitlines() if ": " in line)
    found = {
        "lm_eval": content["lm_eval_version"],
        "mdlm_lm_eval": mdlm.get("package_version"),
        "transformers": content.get("transformers_version"),
        "torch": facts.get("PyTorch version"),
        "python": facts.get("Python version", "").split(" ")[0],
    }
    return {name: published_text(str(version)) for name, version in found.items() if version}


def _date(date: object) -> str:
    if not is_number(date):
        return ""
    return datetime.fromtimestamp(float(date), UTC).isoformat(timespec="seconds")  # type: ignore[arg-type]
