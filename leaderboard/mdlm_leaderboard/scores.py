"""From one result file to single scores, each with the place in the leaderboard where it belongs."""

from dataclasses import dataclass, replace
from typing import Literal

from mdlm_leaderboard import suite
from mdlm_leaderboard.checkpoint import AUTOREGRESSIVE_KINDS, Checkpoint, checkpoint_of, display_name
from mdlm_leaderboard.decoding import Decoding, benchmark_decoding, fillers_of, mask_ratio_of, suite_decoding
from mdlm_leaderboard.result_files import ResultFile, TaskResult, UnusableFile, leaves, unusable_if_different
from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Run, Setting
from mdlm_leaderboard.runs import run_of

Experiment = Literal["masks", "dots", "positions", "positions_by_masks", "distractors", "benchmarks"]


@dataclass(frozen=True)
class Cell:
    """One number of the leaderboard.

    `series` is the question's place, the mask count or the masks as text, as the experiment's mapping in `Row` has it
    ("" for those of one level); `x` its inner key: masks, dots, position, number of distractors, or benchmark column.
    """

    checkpoint: Checkpoint
    decoding: Decoding
    setting: Setting
    experiment: Experiment
    series: str | int
    x: int | str

    def __str__(self) -> str:
        places = {
            "masks": f"mdlm_context at {_masks(self.x)}",
            "dots": f"mdlm_slot at {self.x} dots",
            "positions": f"mdlm_locality_{self.series}_pos{self.x}",
            "positions_by_masks": f"mdlm_position_pos{self.x} at {_masks(self.series)}",
            "distractors": f"mdlm_context at {_masks(self.series)} and {self.x} distractor examples",
            "benchmarks": f"{self.x!r}",
        }
        checkpoint, adapter = self.checkpoint, self.checkpoint.adapter
        name = repr(display_name(checkpoint.model)) + (f" with {display_name(adapter)!r}" if adapter else "")
        steps = f", steps {self.decoding.steps}" if self.decoding.steps else ""
        return f"{places[self.experiment]} of {name}{steps}"

    @property
    def is_repeated(self) -> bool:
        """Whether the same score stands in the table of masks, too."""
        return self.experiment == "distractors" and "%" not in str(self.series)


@dataclass(frozen=True)
class Score:
    """What one file says of one cell; the suite's cells are made of 16 tasks' scores."""

    cell: Cell
    task: str
    mean: float
    standard_error: float | None
    n_questions: int


@dataclass(frozen=True)
class FileScores:
    """All scores of one file, and what of it is left out, in sentences."""

    run: Run
    scores: tuple[Score, ...]
    left_out: tuple[str, ...]


def file_scores(file: ResultFile) -> FileScores:
    """The scores of a file. Raises UnusableFile where something about it as a whole is wrong."""
    with unusable_if_different():
        return _file_scores(file)


def _file_scores(file: ResultFile) -> FileScores:
    scores: list[Score] = []
    left_out: list[str] = []
    checkpoint = checkpoint_of(file)
    suite_results = {name: task for name in file.tasks if (task := suite.suite_task(name))}
    for result in file.tasks.values():
        if file.limit is None and result.n_questions != result.n_original:
            raise UnusableFile(
                f"answers {result.n_questions} of {result.n_original} questions of {result.name!r} without a --limit"
            )
    if suite_results and file.mdlm is None and file.model_kind not in AUTOREGRESSIVE_KINDS:
        left_out.append(
            f"states no mask count for its few-shot tasks (--model {file.model_kind!r}); run them with --model mdlm"
        )
        suite_results = {}
    for name, task in suite_results.items():
        scores += _suite_scores(file, file.tasks[name], task, checkpoint)
    for result in _benchmarks(file):
        found, unfit = _benchmark_scores(file, result, checkpoint)
        scores += found
        left_out += unfit
    return FileScores(run_of(file), tuple(scores), tuple(left_out))


def _suite_scores(file: ResultFile, result: TaskResult, task: suite.SuiteTask, checkpoint: Checkpoint) -> list[Score]:
    mean = result.metrics.get("exact_match,none")
    if mean is None:
        raise UnusableFile(f"has no number as exact_match of {result.name!r}; allowed are numbers from 0 to 1")
    if not 0 <= mean <= 1:
        raise UnusableFile(f"has exact_match={mean} for {result.name!r}; allowed are numbers from 0 to 1")
    if file.mdlm is None and not task.is_open_ended:
        raise UnusableFile(f"runs {result.name!r}, whose slots need masks, with --model {file.model_kind!r}")
    if file.mdlm is not None and not {"masks", "steps"} <= result.effective.keys():
        raise UnusableFile(f"states no mask count for {result.name!r}")
    setting = Setting(
        suite_version=result.version,
        suite_hash=(file.mdlm or {}).get("task_suite", {}).get("sha256"),
        fewshot_relevant=_metadata(result, "fewshot_relevant"),
        fewshot_distractors=_metadata(result, "fewshot_distractors"),
        fewshot_seed=_metadata(result, "fewshot_seed"),
        limit=file.limit,
        chat_template=file.chat_template,
    )
    decoding = suite_decoding(file, result, task)
    cells = [
        Cell(checkpoint, decoding, at or setting, experiment, series, x)
        for experiment, series, x, at in _places(file, result, task, setting)
    ]
    return [Score(cell, task.task, mean, None, result.n_questions) for cell in cells]


def _places(
    file: ResultFile, result: TaskResult, task: suite.SuiteTask, setting: Setting
) -> list[tuple[Experiment, str | int, int, Setting | None]]:
    """Experiment, series, x and, where it is another than the run's, the setting."""
    if not task.is_open_ended:
        if task.question is None or task.position is None:
            return [("dots", "", fillers_of(file, result), None)]
        return [("positions", task.question, task.position, None)]
    ratio = mask_ratio_of(file, result)
    low, high = result.effective.get("masks", (NO_MASKS, NO_MASKS))
    if ratio is None and low != high:
        raise UnusableFile(
            f"appends {low} to {high} masks in {result.name!r}; allowed is one number of masks or a ratio"
        )
    if task.position is not None:
        if ratio is not None:
            raise UnusableFile(f"has mask_ratio={ratio:g} for {result.name!r}; allowed is a number of masks")
        return [("positions_by_masks", low, task.position, None)]
    masks = [("masks", "", low, None)] if ratio is None else []
    # The curve over distractor examples (E5) belongs to the standard setting, from which only that number differs.
    standard = replace(setting, fewshot_distractors=suite.STANDARD_DISTRACTORS)
    share = f"{100 * ratio:g}%" if ratio is not None else {NO_MASKS: AUTOREGRESSIVE, 2: "2"}.get(low)
    n = setting.fewshot_distractors or 0
    return [*masks, *([("distractors", share, n, standard)] if share else [])]  # type: ignore[list-item]


def _masks(masks: int | str) -> str:
    return "no masks" if masks in (NO_MASKS, AUTOREGRESSIVE) else f"{masks} masks"


def _metadata(result: TaskResult, name: str) -> int:
    value = result.metadata.get(name)
    if not isinstance(value, int | str) or not str(value).isdecimal():
        raise UnusableFile(f"states no {name} for {result.name!r}")
    return int(value)


def _benchmarks(file: ResultFile) -> list[TaskResult]:
    """Groups that have a score of their own, and the tasks in none of them; not the suite's."""
    members = {
        name: found for name in file.group_results if not any(map(suite.suite_task, found := leaves(name, file.groups)))
    }
    inside = {task for tasks in members.values() for task in tasks}
    tasks = [result for name, result in file.tasks.items() if name not in inside and not suite.suite_task(name)]
    return [*(file.group_results[name] for name in members), *tasks]


def _benchmark_scores(file: ResultFile, result: TaskResult, checkpoint: Checkpoint) -> tuple[list[Score], list[str]]:
    if file.mdlm is not None and "masks" not in result.effective:
        return [], [f"states no mask count for {result.name!r}"]
    setting = Setting(None, None, None, None, None, file.limit, file.chat_template)
    chat = ", chat template" if file.chat_template else ""
    scores, unfit = [], []
    for metric, mean in result.metrics.items():
        if not 0 <= mean <= 1 or not result.higher_is_better.get(metric.partition(",")[0], True):
            unfit.append(f"{metric!r} of {result.name!r} is no accuracy from 0 to 1")
            continue
        column = (
            f"{result.name} v{result.version} ({metric.removesuffix(',none')}; {result.shots}-shot{chat}; "
            f"{benchmark_decoding(file, result)})"
        )
        cell = Cell(checkpoint, Decoding("", "", ""), setting, "benchmarks", "", column)
        scores.append(Score(cell, result.name, mean, result.standard_errors.get(metric), result.n_questions))
    return scores, unfit
