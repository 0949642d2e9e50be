"""Makes one table of scores from result files: every number with the row and the experiment that it belongs to."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any

import pandas as pd

from mdlm_lm_eval.options import PARALLEL_RULES
from mdlm_lm_eval.results.deviations import CHAT_TEMPLATE, MASKS, ONE_TURN, Deviation, deviations_of, prompts_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.frame import COSTS, rows_of
from mdlm_lm_eval.results.result_file import UNKNOWN, ResultFile, TaskResult, leaves
from mdlm_lm_eval.results.samples import scores_by_question
from mdlm_lm_eval.results.suite import SUITE_METRIC, SuiteTask, generated_group, task_names
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

CHANCE = 100 / 3  # percent, of three options
TOLERANCE = 1e-9  # equal means may differ by the order of float sums
PARALLEL = "mdlm_parallel"  # the group that has ParallelBench's PB90
NO_MASKS = 0  # the number of masks of an autoregressive model
AUTOREGRESSIVE = "autoregressive"
BENCHMARKS = "benchmarks"  # the experiment of all tasks outside the suite
_FROM_FRAME = "file task score low high n is_accuracy machine share pairs is_one_block".split()  # noqa: SIM905


Series = str | int


@dataclass(frozen=True)
class Experiment:
    """One experiment. Its curves are accuracies over `x`, one per series ("" if there is only one).

    head: an x in words, in the plural.
    series_words: returns a series in words.
    """

    title: str
    x_label: str
    head: str
    series_words: Callable[[Any], str] = str

    def at(self, x: int) -> str:
        """An x in words, in the singular for 1."""
        words = self.head.format(x)
        return words.removesuffix("s") if x == 1 else words


def places_of(task: SuiteTask, masks: int | None, ratio: float | None, fillers: int) -> dict[str, tuple[Series, int]]:
    """The experiments that a task's score belongs to: name -> its series and x.

    `masks` is None if questions differ in their number of masks.
    """
    found: dict[str, tuple[Series, int]] = {}
    if task.is_slot:
        found["dots"] = "", fillers
    if task.question:
        found["positions"] = task.question, task.position or 0
    if task.is_open_ended and ratio is not None and task.position is None:
        found["shares"] = "", round(100 * ratio)
    if task.is_open_ended and masks is not None:
        found |= {"masks": ("", masks)} if task.position is None else {"positions_by_masks": (masks, task.position)}
    return found


def _n_masks(masks: Series) -> str:
    return "no masks" if masks == NO_MASKS else f"{masks} mask{'' if masks == 1 else 's'}"


_BLOCK, _AFTER = "number of distractor examples before the block", "after {} distractors"
_BY_PLACE = "Position of the relevant block"
_IN_TURN = "Position of the relevant block at each mask count"
BY_NAME = {
    "masks": Experiment("Masks appended", "number of appended masks", "{} masks"),
    "shares": Experiment("Masks as a share of the prompt", "masks, in percent of the prompt's tokens", "{}% masks"),
    "positions": Experiment(_BY_PLACE, _BLOCK, _AFTER, lambda place: f"question {place}"),
    "positions_by_masks": Experiment(_IN_TURN, _BLOCK, _AFTER, _n_masks),
    "dots": Experiment("Dots after the answer", "number of appended masks or dots", "{} dots"),
}


@dataclass(frozen=True)
class Setting:
    """The facts that must be equal for two scores to share a table.

    asks: the suite's family of questions, "" for benchmarks.
    limit: lm-eval's `--limit`, None for all questions.
    served_by: the engine that decoded, "" for this package.
    group: a generated group beside the suite, "" for other tasks.
    at_own_lengths: whether some continuations were longer than `n_masks`.
    """

    asks: str = ""
    suite_version: str | None = None
    suite_hash: str | None = None
    fewshot_relevant: int | None = None
    fewshot_distractors: int | None = None
    fewshot_seed: int | None = None
    fewshot_template: int | None = None
    fewshot_labels: str | None = None
    limit: float | None = None
    chat_template: bool = False
    served_by: str = ""
    group: str = ""
    at_own_lengths: bool = False


@dataclass(frozen=True)
class Who:
    """The identity of a row of the board: checkpoint, adapter and way of decoding.

    recipe: the adapter's name without its model's name and its seed, "" without an adapter. seed: one of several;
        n_seeds: of a median.
    weights, adapter_weights: digests, which distinguish checkpoints of one name ("" if unknown). template: that of the
        chat template.
    adapter_recipe: the digest of the adapter's training without its seed.
    other: further settings that differ from the defaults.
    """

    model: str
    recipe: str
    weights: str
    adapter_weights: str
    family: str
    source: str
    template: str = ""
    adapter_recipe: str = ""
    seed: int | None = None
    n_seeds: int = 0
    steps: str = ""
    unmasking: str = ""
    other: tuple[Deviation, ...] = ()

    @property
    def adapter(self) -> str:
        """The adapter's recipe with its seed, or with the number of its seeds, in words."""
        seeds = f"median of {self.n_seeds} seeds" if self.n_seeds else ""
        seeds = seeds if self.seed is None else f"seed {self.seed}"
        return ", ".join(filter(None, (self.recipe, seeds)))

    @property
    def decoding(self) -> tuple[Deviation, ...]:
        """All settings that may distinguish the row from others of its checkpoint."""
        steps = Deviation("steps", self.steps, said="" if self.steps.isdecimal() else self.steps)
        own = [one for one in (steps, Deviation("unmasking", self.unmasking)) if one.value]
        return (*own, *self.other)

    def __str__(self) -> str:
        return f"{self.model} + {self.adapter}" if self.adapter else self.model


@dataclass(frozen=True)
class Scores:
    """All scores of some result files.

    table: one line per score, with its row (`who`, `setting`), experiment, series, x, task and file.
    files: the result files by their paths.
    refused: files and scores that are in no table, each with its reason.
    """

    table: pd.DataFrame
    files: Mapping[str, ResultFile]
    refused: tuple[tuple[str, str], ...]


def scores_of(files: Iterable[ResultFile], left_out: Mapping[str, str]) -> Scores:
    """All scores of the files. If two files have the same score, the first is used; if they disagree, neither is."""
    refused, by_path = list(left_out.items()), {}
    lines: list[dict[str, Any]] = []
    for file in files:
        by_path[file.path] = file
        try:
            lines += file_scores(file, refused)
        except UnusableFile as error:
            refused.append((file.path, str(error)))
    table = pd.DataFrame(lines)
    if table.empty:
        return Scores(table, by_path, tuple(refused))
    table = _with_names(_with_hashes(table))
    table["place"] = table.groupby(["setting", "who", "experiment", "series", "x"], sort=False).ngroup()
    disputes: dict[tuple[str, str], str] = {}
    disputed = set()
    for _, same in table[table.duplicated(["place", "task"], keep=False)].groupby(["place", "task"], sort=False):
        one, other = same.iloc[0], same.iloc[-1]
        if same["score"].max() - same["score"].min() > TOLERANCE or same["n"].nunique() > 1:
            disputed.add(one.place)
            disputes.setdefault((one.file, other.file), f"{one.score:g} against {other.score:g} on {one.task}")
    refused += [(one, f"disagrees with {other!r} ({what}); neither is used") for (one, other), what in disputes.items()]
    table = table[~table["place"].isin(disputed)].drop_duplicates(["place", "task"])
    # Tasks of the suite in cells with fewer than 16 tasks are shown like any other benchmark.
    is_benchmark, n_tasks = table["experiment"] == BENCHMARKS, table.groupby("place")["task"].transform("size")
    is_partial = ~is_benchmark & (n_tasks != len(task_names()))
    tasks = pd.MultiIndex.from_frame(table[["file", "name"]])
    unshown = tasks[is_partial].difference(tasks[is_benchmark]).unique("file")
    refused += [(path, "asks its few-shot tasks in different settings") for path in unshown]
    is_shown = is_benchmark & (table["result"].map(lambda one: one.suite is None) | tasks.isin(tasks[is_partial]))
    return Scores(pd.concat([table[~is_benchmark & ~is_partial], table[is_shown]]), by_path, tuple(refused))


def file_scores(file: ResultFile, refused: list[tuple[str, str]]) -> Iterable[dict[str, Any]]:
    """One line per score and place. Raises UnusableFile if the file as a whole cannot be used.

    Single scores that cannot be used are added to `refused`.
    """
    for result in file.tasks.values():
        if file.limit is None and result.n_questions != result.n_original:
            raise UnusableFile(
                f"answers {result.n_questions} of {result.n_original} questions of {result.name!r} without a --limit"
            )
    used = _used_of_suite(file, refused)
    found = Counter(task.group for task in used.values())
    partial = {name for name, task in used.items() if found[task.group] < len(task_names())}
    lines: list[dict[str, Any]] = []
    unread: list[str] = []
    for row in rows_of(file, scores_by_question(file, unread)):
        if row["metric"] == SUITE_METRIC and (task := used.get(row["task"])):
            lines += _suite_lines(file, row, task)
        lines += _benchmark_lines(file, row, partial)
    refused += [(file.path, words) for words in unread]
    return lines


def _used_of_suite(file: ResultFile, refused: list[tuple[str, str]]) -> dict[str, SuiteTask]:
    """The few-shot tasks of a file whose scores count, by name. Raises UnusableFile if one of them has no score."""
    suites = {name: result.suite for name, result in file.tasks.items() if result.suite}
    counted = all({"masks", "asked_masks"} <= file.tasks[name].effective.keys() for name in suites)
    if suites and not counted and file.model_kind not in autoregressive_kinds():
        how = "; settings must state n_masks" if file.server else ""
        refused.append((file.path, f"states no mask count for its few-shot tasks (--model {file.model_kind}{how})"))
        suites = {}
    cut = [name for name in suites if file.tasks[name].counts["truncated_prompts"]]
    if cut:
        first = file.tasks[cut[0]]
        of_first = f"{first.counts['truncated_prompts']} of {first.n_questions} of {first.name}"
        what = f"prompts that do not fit into the model's context lost their first examples ({of_first})"
        refused.append((file.path, f"{what}, in {len(cut)} few-shot tasks, which are left out; ask for fewer masks"))
    used = {name: task for name, task in suites.items() if name not in cut}
    if lacking := [name for name in used if SUITE_METRIC not in file.tasks[name].metrics]:
        raise UnusableFile(f"has no exact_match for {lacking[0]!r}")
    return used


@cache
def autoregressive_kinds() -> frozenset[str]:
    """The names of lm-eval's own models. Models with other names may be diffusion models with an unknown mask count."""
    from lm_eval.models import MODEL_MAPPING

    return frozenset(MODEL_MAPPING) - {"mdlm", "mdlm-server", "dummy"}


def who_of(file: ResultFile) -> Who:
    """The checkpoint of a file. Files in a folder `submitted` were not measured by the board's owners."""
    is_autoregressive = not file.mdlm and file.model_kind in autoregressive_kinds()
    recipe, seed = file.trained
    return Who(
        model=file.model,
        recipe=recipe.removeprefix(f"{file.model.rpartition('/')[2]}-"),
        seed=seed,
        weights=str(file.mdlm.get("weights") or ""),
        template=file.template,
        adapter_weights=str(file.mdlm.get("adapter_weights") or ""),
        adapter_recipe=str(file.mdlm.get("adapter_recipe") or ""),
        family=file.mdlm.get("family") or (AUTOREGRESSIVE if is_autoregressive else file.model_kind),
        source="submitted" if "submitted" in PurePosixPath(file.path).parts else "measured here",
    )


def _line(file: ResultFile, row: Mapping[str, Any], result: TaskResult, **place: Any) -> dict[str, Any]:
    """A line of the table of scores: some facts of `row`, which is a row of `rows_of`, and the score's place."""
    facts = {name: row[name] for name in (*_FROM_FRAME, *COSTS)} | {"row": row, "check": file.mdlm.get("check")}
    more = {"name": result.name, "result": result, "counts": None, "bound": None, "tokens_per_evaluation": None}
    return facts | more | place


def _suite_lines(file: ResultFile, row: Mapping[str, Any], task: SuiteTask) -> Iterable[dict[str, Any]]:
    result = file.tasks[row["task"]]
    if not file.mdlm and not task.is_open_ended:
        raise UnusableFile(f"runs {result.name!r}, whose slots need masks, with --model {file.model_kind}")
    facts: dict[str, Any] = {
        name: getattr(file, name) for name in ("suite_hash", "served_by", "limit", "chat_template")
    }
    for name, default in DEFAULT_SETTINGS.items():
        facts[name] = type(default)(result.metadata.get(name, default))
    setting, who = Setting(task.asks, result.version, **facts), _suite_who(file, result, task)
    ratio, (low, high) = result.options.get("mask_ratio"), result.effective.get("asked_masks", (NO_MASKS, NO_MASKS))
    masks, fillers = low if low == high and ratio is None else None, result.options.get("n_fillers") or 0
    for name, (series, x) in places_of(task, masks, ratio, fillers).items():
        yield _line(file, row, result, task=task.task, setting=setting, who=who, experiment=name, series=series, x=x)


def _suite_who(file: ResultFile, result: TaskResult, task: SuiteTask) -> Who:
    """The row of a score of the suite. With one step, it has no `unmasking`: there is no order to choose."""
    who, without = who_of(file), MASKS | {"steps", "steps_per_block", "unmasking", CHAT_TEMPLATE}
    other = [one for one in deviations_of(file, result) if one.name not in without]
    if file.chat_template and not file.fewshot_as_multiturn:
        other.append(Deviation("fewshot_as_multiturn", "false", said=ONE_TURN))
    if not file.mdlm:
        return replace(who, steps=AUTOREGRESSIVE, other=tuple(other))
    options, masks = result.options, result.effective["masks"][1]
    if not task.is_open_ended and masks > 1:
        other.append(Deviation("masks_after", str(masks - 1), said=f"{masks - 1} masks after the text"))
    if options.get("n_fillers") and (not task.is_slot or options.get("filler") != "."):
        said = f"{options['n_fillers']} fillers {options.get('filler')!r}"
        other.append(Deviation("n_fillers", str(options["n_fillers"]), said=said))
    steps = _steps(result, is_one_mask=not task.is_open_ended)
    order = options.get("unmasking") or UNKNOWN
    return replace(who, steps=steps, unmasking="" if steps == "1" or order == UNKNOWN else order, other=tuple(other))


def _steps(result: TaskResult, *, is_one_mask: bool) -> str:
    """The number of steps that was asked for, or the number taken if none was asked for or it may have no effect."""
    options, asked = result.options, result.options.get("steps", UNKNOWN)
    if any(options.get(name) not in (None, UNKNOWN) for name in PARALLEL_RULES):
        return "by confidence"
    is_counted, has_blocks = "steps" in result.effective, "masks_in_block" in result.effective
    if options.get("steps_per_block") not in (None, UNKNOWN) and (has_blocks or not is_counted):
        return f"{options['steps_per_block']} per block"
    if not is_counted:  # as by a server
        return "" if asked == UNKNOWN else str(asked)
    taken = result.effective["steps"][1]
    if has_blocks:  # with more masks, a block-diffusion model takes more steps, but sees no more masks
        return str(asked) if asked != "auto" else "a step per token" if taken > 1 else "1"
    is_taken = asked in ("auto", UNKNOWN) or options.get("block_length") or (taken == 1 and is_one_mask)
    return str(taken if is_taken else asked)


def _benchmark_lines(file: ResultFile, row: Mapping[str, Any], partial: Collection[str]) -> Iterable[dict[str, Any]]:
    """The lines of groups with a score, of tasks in no such group, and of the suite's tasks in `partial`.

    Generated groups have tables of their own, with all their tasks.
    """
    result = {**file.tasks, **file.group_results}[row["task"]]
    of_suite = any(
        name in file.tasks and file.tasks[name].suite for name in file.groups.get(result.name, [result.name])
    )
    group, is_bound = generated_group(result.name), row["metric"].startswith("bound_")
    if result.name not in partial if of_suite else is_bound if group else row["group"]:
        return
    metric = [row["metric"].removesuffix(",none")]
    short = result.name.removeprefix(f"{group}_").removeprefix("mdlm_") if group else result.name
    counts = {
        "prompts cut off": result.counts["truncated_prompts"],
        "unfinished": result.counts["unfinished_thinking"],
        "with their thinking": result.counts["thinking_kept"],
        "end at once": result.counts["at_once"] * result.has_several_tokens,
    }
    is_longer = result.counts["longer_continuations"] > 0
    yield _line(
        file,
        row,
        result,
        experiment=BENCHMARKS,
        series="",
        x=f"{short} v{result.version} ({', '.join(metric + prompts_of(file, result))})",
        setting=Setting(served_by=file.served_by, limit=file.limit, group=group, at_own_lengths=is_longer),
        who=replace(who_of(file), other=tuple(deviations_of(file, result))),
        counts=Counter(counts),
        bound=_bound(result),
        tokens_per_evaluation=_per_evaluation(file) if result.name == PARALLEL else None,
    )


def _per_evaluation(file: ResultFile) -> float | None:
    """Tokens asked for per forward pass (also those after an EOS), averaged over the tasks of `mdlm_parallel`.

    None if a task has no record of them.
    """
    costs = [file.tasks[name].cost for name in leaves(PARALLEL, file.groups)]
    known = all(cost.get("forward_passes") and cost.get("written_tokens") for cost in costs)
    return fmean(cost["written_tokens"] / cost["forward_passes"] for cost in costs) if known else None


def _bound(result: TaskResult) -> str:
    """The best score of independent draws of k tokens per step, for every `bound_k` below 1, in words."""
    found = {name.partition(",")[0].removeprefix("bound_"): score for name, score in result.metrics.items()}
    return ", ".join(f"{100 * one:.1f} at {k}" for k, one in found.items() if k.isdecimal() and one < 1)


def _with_hashes(table: pd.DataFrame) -> pd.DataFrame:
    """Other models record no suite hash. This gives their scores the hash of their setting, if it has only one."""
    hashed = {one: replace(one, suite_hash=None) for one in table["setting"].unique() if one.suite_hash}
    n_hashes = Counter(hashed.values())
    only = {without: one for one, without in hashed.items() if n_hashes[without] == 1}
    return table.assign(setting=[only.get(setting, setting) for setting in table["setting"]])


def _with_names(table: pd.DataFrame) -> pd.DataFrame:
    """Appends digests to names that checkpoints or adapters with different weights or chat templates share."""
    found = set(table["who"])

    def added(digest: str, *of: str) -> dict[Who, str]:
        """The digest in words for each row whose name, `of` these fields, has several."""
        own = {one: tuple(getattr(one, name) for name in of) for one in found if getattr(one, digest)}
        several = Counter(names for names, _ in {(own[one], getattr(one, digest)) for one in own})
        word = "template " if digest == "template" else ""
        return {one: f" ({word}{getattr(one, digest)[:7]})" for one, names in own.items() if several[names] > 1}

    of_weights, of_template = added("weights", "model"), added("template", "model", "weights")
    of_adapter, names = added("adapter_weights", "model", "adapter"), {}
    for one in found:
        same = replace(one, model=one.model + of_weights.get(one, "") + of_template.get(one, ""))
        is_shared = one in of_adapter
        names[one] = replace(same, recipe=one.adapter + of_adapter[one], seed=None) if is_shared else same
    return table.assign(who=[names[one] for one in table["who"]])
