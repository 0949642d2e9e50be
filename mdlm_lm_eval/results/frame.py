"""Result files as one tidy pandas DataFrame: `from mdlm_lm_eval.results import load`."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.deviations import MASKS, deviations_of, prompts_of
from mdlm_lm_eval.results.files import UnusableFile, check_inside
from mdlm_lm_eval.results.recorded import LARGEST
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, find_result_files, missing, read_result_file
from mdlm_lm_eval.results.samples import AnswersByCluster, decomposition_of, pair_accuracies, scores_by_question
from mdlm_lm_eval.results.statistics import Interval, Score, mean_of_tasks, score_of_sets, score_of_tasks
from mdlm_lm_eval.results.suite import SUITE_METRIC
from mdlm_lm_eval.results.text import check_in_words, printable

# The costs of answers, and their heads in tables. Positions are those that went through the layers, per token of the
# answer: unlike passes they credit caches, and unlike seconds they are the same on every machine.
COSTS = {
    "tokens_per_pass": "tokens per pass",
    "tokens_per_second": "tokens per second",
    "positions_per_token": "positions per token",
    "seconds": "seconds per request",
    "memory_gib": "memory (GiB)",
}
ONE_BLOCK = "one block, as any longer"  # marks results whose blocks hold all masks: longer blocks decode alike
# Columns of a table that a person reads.
SHORT = "model adapter task is_group metric n score low high masks setting limit file".split()  # noqa: SIM905
_OF_FILE = ("model", "adapter", "served_by", "dtype", "chat_template", "limit", "suite_hash", "date")


def load(folder: str | Path, columns: Literal["short", "all"] = "short") -> pd.DataFrame:
    """All result files under `folder`, one row per (file, task or group, metric). Warns about files that it leaves out.

    `columns` is "short" for a selection, or "all":

    - `score`: lm-eval's score, for accuracies from 0 to 1
    - `low`, `high`: its 95% interval over `n` questions: Wilson's for shares, 1.96 standard errors for other scores.
      In the few-shot suite, a set of questions counts once if samples or first tokens are recorded
    - `masks`: the number of masks that was asked for; missing if questions differ in it
    - `setting`: the settings that differ from the defaults, in words
    - `share`: for differences between rows (only among all columns, as those that follow)
    - `group`: the group that a task or group belongs to in its file ("" at the top)

    The names of `COSTS`, digests, versions and every decoding or likelihood option in effect are further columns.
    Raises OptionError if no file can be used, and for other `columns`.
    """
    if columns not in ("short", "all"):
        raise OptionError(f"columns must be short or all, not {columns}")
    files, left_out = read_folder(Path(folder))
    for name, reason in left_out.items():
        warnings.warn(printable(f"{name} is left out: it {reason}"), stacklevel=2)
    if not files:
        what = "holds no usable result file (*.json of lm-eval)" if Path(folder).exists() else missing(Path(folder))
        raise OptionError(f"{folder} {what}")
    frame = frame_of(files)
    return frame[SHORT] if columns == "short" else frame


def read_folder(folder: Path, *, leave_out: Path | None = None) -> tuple[list[ResultFile], dict[str, str]]:
    """All result files under `folder`, named by their paths below it, and the reason why each other cannot be used."""
    files, left_out = [], {}
    for path in find_result_files(folder, leave_out=leave_out):
        name = printable(path.relative_to(folder).as_posix())
        try:
            check_inside(path, folder)
            files.append(read_result_file(path, name))
        except UnusableFile as error:
            left_out[name] = str(error)
    return files, left_out


def benchmarks(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of groups, and of tasks that are in no group. Accuracies become percent.

    The column `benchmark` names task and metric, `in_words` is the score with its interval, such as
    "70.5 (68.0 to 72.9)".
    """
    top = frame[frame["group"] == ""].copy()
    top["benchmark"] = top["task"] + " (" + top["metric"].str.removesuffix(",none") + ")"
    factor, ends = top["is_accuracy"].map({True: 100.0, False: 1.0}), ["score", "low", "high"]
    top[ends] = top[ends].astype(float).mul(factor, axis=0)
    top["in_words"] = [_in_words(row) for row in top.itertuples()]
    return top


def _in_words(row: Any) -> str:
    band = Interval(row.score, row.low, row.high) if row.low < row.high else Interval(row.score)
    return band.written(".1f" if row.is_accuracy else ".4g")


def frame_of(files: Iterable[ResultFile]) -> pd.DataFrame:
    """The table that `load` returns, from files that have been read."""
    return pd.DataFrame([row for file in files for row in rows_of(file)])


def rows_of(file: ResultFile, answers: AnswersByCluster | None = None) -> Iterable[dict[str, Any]]:
    """The rows of one file, as `load` describes them. `answers` are those of `scores_by_question`; None reads them."""
    answers = scores_by_question(file) if answers is None else answers
    facts: dict[str, Any] = {
        "file": file.path,
        **{name: getattr(file, name) for name in _OF_FILE},
        "family": file.mdlm.get("family", file.model_kind),
        **{name: (found := file.mdlm.get(name)) and str(found) for name in ("weights", "adapter_weights")},
        "template": file.template or None,
        "device": file.mdlm.get("device_name", file.config.get("device")),
        "machine": _machine(file),
        "check": check_in_words(file.mdlm.get("check")),
    }
    pairs = pair_accuracies(answers)
    parent = {member: group for group in file.group_results for member in file.groups[group]}
    for result in [*file.tasks.values(), *file.group_results.values()]:
        of_task = _facts_of_task(file, result, parent.get(result.name, ""), pairs)
        fewshot = {key: value for key, value in result.metadata.items() if key.startswith("fewshot_")}
        for metric, score in result.metrics.items():
            of_metric = _with_metric(file, result, metric)
            share = _share(file, of_metric, metric, answers)
            interval = share.interval if share else result.interval(metric)
            of_score = {"metric": metric, "score": score, "low": interval.low, "high": interval.high, "share": share}
            of_score["n"] = of_metric.n_questions
            row = facts | of_task | of_score | {"is_accuracy": result.is_accuracy(metric)}
            more = {**fewshot, **result.options, **row}  # a column above keeps its value
            yield {key: _held(value) for key, value in {**row, **more}.items()}


def _with_metric(file: ResultFile, result: TaskResult, metric: str) -> TaskResult:
    """The result with the number of questions that have this metric: tasks of a group may have different ones."""
    n = sum(task.n_questions for task in file.tasks_of(result) if metric in task.metrics)
    return replace(result, n_questions=n or result.n_questions)


def _facts_of_task(
    file: ResultFile, result: TaskResult, group: str, pairs: Mapping[str, tuple[float | None, int]]
) -> dict[str, Any]:
    """The columns that are equal in all rows of a task or group, which belongs to `group` in its file."""
    low, high = result.effective.get("asked_masks", (None, None))
    setting = deviations_of(file, result)
    shots = {task.shots for task in file.tasks_of(result)}
    has_guest = any(one.is_guest for one in setting)
    return {
        "task": result.name,
        "is_group": result.name in file.groups,
        "group": group,
        "n": result.n_questions,
        "version": result.version,
        "shots": shots.pop() if len(shots) == 1 else None,
        "truncated_prompts": result.counts["truncated_prompts"],
        "fewshot_seed": result.metadata.get("fewshot_seed", file.config.get("fewshot_seed")),
        "masks": low if low == high else None,
        "setting": ", ".join([*prompts_of(file, result), *map(str, setting)]),
        "settings": tuple(map(str, setting)),
        "settings_without_masks": tuple(str(one) for one in setting if one.name not in MASKS),
        "is_guest": has_guest,
        "is_one_block": _is_one_block(result) and not has_guest,
        "pairs": pairs.get(result.suite.group if result.suite else result.name, (None, 0))[0],
        **_costs(result.cost),
    }


def _held(value: Any) -> Any:
    """The value, as a string if it is a whole number that pandas 2 cannot hold."""
    return str(value) if isinstance(value, int) and abs(value) > LARGEST else value


def _machine(file: ResultFile) -> str:
    """The facts that seconds depend on, in words: device, dtype, batch size and processes."""
    name = file.mdlm.get("device_name") or file.mdlm.get("device") or file.config.get("device")
    several = [f"{file.mdlm['processes']} processes"] if file.mdlm.get("processes", 1) > 1 else []
    at_once = f"{'requests at once: ' if file.server else 'batches of '}{file.mdlm.get('batch_size')}"
    return ", ".join(filter(None, [str(name), file.dtype, at_once, *several]))


def _costs(cost: Mapping[str, float]) -> dict[str, float | None]:
    """The costs by their names in `COSTS`; None for those that are not recorded."""

    def ratio(amount: str, per: str) -> float | None:
        return cost[amount] / cost[per] if cost.get(amount) and cost.get(per) else None

    return {
        "tokens_per_pass": ratio("answer_tokens", "forward_passes"),
        "tokens_per_second": ratio("answer_tokens", "seconds"),
        "positions_per_token": ratio("layer_tokens", "answer_tokens"),
        "seconds": ratio("seconds", "requests"),
        "memory_gib": cost.get("peak_memory_bytes", 0) / 2**30 or None,
    }


def shown_costs(rows: pd.DataFrame) -> list[str]:
    """The costs that any of the rows has. Seconds are among them only if a row has no tokens per second."""
    found = [name for name in COSTS if rows[name].notna().any()]
    return [name for name in found if name != "seconds" or rows["tokens_per_second"].isna().any()]


def _share(file: ResultFile, result: TaskResult, metric: str, answers: AnswersByCluster) -> Score | None:
    """The `Score` of a metric from 0 to 1; None for other metrics, and if no standard error is known.

    It is computed from single questions, or from the first tokens that the suite's tasks record, if all of them are
    known and their mean is the score.
    """
    name, known = result.name, None
    asked = answers.get(name, {}).get(metric)
    if name in file.groups:
        known = _share_of_group(file, result, metric, answers)
    elif asked and all(0 <= score <= 1 for _, score in asked):
        known = score_of_sets({name: asked}, result.repeats)
    elif metric == SUITE_METRIC and result.suite and (first := decomposition_of([result], ["decoded"])):
        known = first.shares.get("decoded")
    if known and math.isclose(known.mean, result.metrics[metric], rel_tol=1e-6, abs_tol=1e-9):
        return known
    if metric == SUITE_METRIC and result.suite:
        return score_of_tasks([result.metrics[metric]], [result.n_questions])
    return result.share(metric)


def _share_of_group(file: ResultFile, group: TaskResult, metric: str, answers: AnswersByCluster) -> Score | None:
    """The mean `Score` of a group's tasks that have the metric; None if it is not known of all of them."""
    tasks = [task for task in file.tasks_of(group) if metric in task.metrics]
    shares = [_share(file, task, metric, answers) for task in tasks]
    found = [one for one in shares if one and (one.parts or tasks[0].suite)]
    return mean_of_tasks(found) if tasks and len(found) == len(tasks) else None


def _is_one_block(result: TaskResult) -> bool:
    """Whether blocks with full attention had at least as many tokens as any canvas had masks."""
    length, (_, masks) = result.options.get("block_length"), result.effective.get("masks", (0, 0))
    return isinstance(length, int) and 0 < masks <= length and "masks_in_block" not in result.effective
