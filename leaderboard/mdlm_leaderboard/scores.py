"""From one result file to single scores, each with the place in the leaderboard where it belongs."""

from dataclasses import dataclass, replace

from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

from mdlm_leaderboard.checkpoint import Checkpoint, autoregressive_kinds, checkpoint_of
from mdlm_leaderboard.decoding import DEFAULT_SEED, Decoding, benchmark_decoding, method_and_pace, suite_decoding
from mdlm_leaderboard.experiments import BY_NAME, EXPERIMENTS, SuiteRun
from mdlm_leaderboard.rows import NO_MASKS, Run, Series, Setting, Speed
from mdlm_leaderboard.runs import machine_of, run_of
from mdlm_lm_eval.options import APPROXIMATE_CACHES
from mdlm_lm_eval.results.asked import asked_masks, options_of
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.result_file import ResultFile, TaskResult, leaves, unusable_if_different
from mdlm_lm_eval.results.suite import SuiteTask, suite_task


@dataclass(frozen=True)
class Place:
    """Where a number stands on the leaderboard: its row, and the point of an experiment's curve."""

    checkpoint: Checkpoint
    decoding: Decoding
    setting: Setting
    experiment: str
    series: Series
    x: int | str

    def __str__(self) -> str:
        return f"{BY_NAME[self.experiment].title}, {self.point}"

    @property
    def point(self) -> str:
        """The point of the curve, and whose it is."""
        experiment = BY_NAME[self.experiment]
        series = [experiment.series_words(self.series)] if experiment.series_head else []
        point = f"{self.x!r}" if isinstance(self.x, str) else experiment.head(self.x)[1]
        steps = f", steps {self.decoding.steps}" if self.decoding.steps else ""
        return f"{', '.join([*series, point])} of {self.checkpoint}{steps}"

    @property
    def is_repeated(self) -> bool:
        """Whether the same score stands in another experiment, too."""
        return bool(BY_NAME[self.experiment].beyond) and "%" not in str(self.series)


@dataclass(frozen=True)
class TaskScore:
    """What one file says of one place; the suite's places take the scores of all 16 tasks of a `group`."""

    place: Place
    task: str
    mean: float
    standard_error: float | None
    n_questions: int
    group: str = ""
    speed: Speed | None = None


@dataclass(frozen=True)
class FileScores:
    """All scores of one file, and what of it is left out, in sentences."""

    run: Run
    scores: tuple[TaskScore, ...]
    left_out: tuple[str, ...]


def file_scores(file: ResultFile) -> FileScores:
    """The scores of a file. Raises UnusableFile where something about it as a whole is wrong."""
    with unusable_if_different():
        return _file_scores(file)


def _file_scores(file: ResultFile) -> FileScores:
    scores: list[TaskScore] = []
    left_out: list[str] = []
    checkpoint = checkpoint_of(file)
    suite_results = {name: task for name in file.tasks if (task := suite_task(name))}
    for result in file.tasks.values():
        if file.limit is None and result.n_questions != result.n_original:
            raise UnusableFile(
                f"answers {result.n_questions} of {result.n_original} questions of {result.name!r} without a --limit"
            )
    if suite_results and file.mdlm is None and file.model_kind not in autoregressive_kinds():
        left_out.append(
            f"states no mask count for its few-shot tasks (--model {file.model_kind!r}); run them with --model mdlm"
        )
        suite_results = {}
    if cut := [name for name in suite_results if file.tasks[name].truncated_prompts]:
        left_out.append(
            f"cut off the first examples of prompts that do not fit into the model's context "
            f"({file.tasks[cut[0]].truncated_prompts} of {file.tasks[cut[0]].n_questions} of {cut[0]!r}, "
            f"{len(cut)} tasks in all); ask for fewer masks or fewer examples"
        )
        suite_results = {name: task for name, task in suite_results.items() if name not in cut}
    for name, task in suite_results.items():
        scores += _suite_scores(file, file.tasks[name], task, checkpoint)
    for result in _benchmarks(file):
        found, unfit = _benchmark_scores(file, result, checkpoint)
        scores += found
        left_out += unfit
    return FileScores(run_of(file), tuple(scores), tuple(left_out))


def _suite_scores(file: ResultFile, result: TaskResult, task: SuiteTask, checkpoint: Checkpoint) -> list[TaskScore]:
    mean = result.metrics.get("exact_match,none")
    if mean is None or not 0 <= mean <= 1:
        said = "no number as exact_match of" if mean is None else f"exact_match={mean} for"
        raise UnusableFile(f"has {said} {result.name!r}; it must be a number from 0 to 1")
    if file.mdlm is None and not task.is_open_ended:
        raise UnusableFile(f"runs {result.name!r}, whose slots need masks, with --model {file.model_kind!r}")
    if file.mdlm is not None and not {"masks", "steps"} <= result.effective.keys():
        raise UnusableFile(f"states no mask count for {result.name!r}")
    settings = {name: _metadata(result, name) for name in DEFAULT_SETTINGS}
    setting = Setting(result.version, file.suite_hash, **settings, limit=file.limit, chat_template=file.chat_template)
    decoding = suite_decoding(file, result, task)
    options = options_of(file, result) if file.mdlm else {}
    ratio = options.get("mask_ratio")
    run = SuiteRun(
        name=result.name,
        task=task,
        masks=asked_masks(file, result) if file.mdlm else (NO_MASKS, NO_MASKS),
        mask_ratio=None if ratio is None else float(ratio),
        fillers=int(options.get("n_fillers", 0)),
        distractors=settings["fewshot_distractors"],
    )
    places = []
    for experiment in EXPERIMENTS:
        standard = {experiment.beyond: DEFAULT_SETTINGS[experiment.beyond]} if experiment.beyond else {}
        row = (checkpoint, decoding, replace(setting, **standard))
        places += [Place(*row, experiment.name, series, x) for series, x in experiment.places(run)]
    return [TaskScore(place, task.task, mean, None, result.n_questions, task.group) for place in places]


def _metadata(result: TaskResult, name: str) -> int:
    value = result.metadata.get(name)
    if not isinstance(value, int | str) or not str(value).isdecimal():
        raise UnusableFile(f"states no {name} for {result.name!r}")
    return int(value)


def _benchmarks(file: ResultFile) -> list[TaskResult]:
    """Groups that have a score of their own, and the tasks in none of them; not the suite's."""
    members = {
        name: found for name in file.group_results if not any(map(suite_task, found := leaves(name, file.groups)))
    }
    inside = {task for tasks in members.values() for task in tasks}
    tasks = [result for name, result in file.tasks.items() if name not in inside and not suite_task(name)]
    return [*(file.group_results[name] for name in members), *tasks]


def _benchmark_scores(
    file: ResultFile, result: TaskResult, checkpoint: Checkpoint
) -> tuple[list[TaskScore], list[str]]:
    if file.mdlm is not None and "masks" not in result.effective:
        return [], [f"states no mask count for {result.name!r}"]
    setting = Setting(None, None, None, None, None, file.limit, file.chat_template)
    prompts = [f"{result.shots}-shot"]
    if result.shots and str(file.run_options["fewshot_seed"]) not in ("None", DEFAULT_SEED):
        prompts.append(f"fewshot_seed={file.run_options['fewshot_seed']}")
    if file.chat_template:
        in_one = " with the examples in one turn" if result.shots and not file.fewshot_as_multiturn else ""
        prompts.append(f"chat template{in_one}")
    how = benchmark_decoding(file, result, is_autoregressive=file.model_kind in autoregressive_kinds())
    scores, unfit = [], []
    for metric, mean in result.metrics.items():
        if not result.is_accuracy(metric):
            unfit.append(f"{metric!r} of {result.name!r} is no accuracy from 0 to 1")
            continue
        what = f"{result.name} v{result.version} ({metric.removesuffix(',none')}; {', '.join(prompts)}"
        place = Place(checkpoint, Decoding("", "", ""), setting, "benchmarks", "", f"{what}; {how})")
        error, speed = result.standard_errors.get(metric), _speed(file, result, f"{what})")
        scores.append(TaskScore(place, result.name, mean, error, result.n_questions, speed=speed))
    return scores, unfit


def _speed(file: ResultFile, result: TaskResult, benchmark: str) -> Speed | None:
    """None where the file does not say what the answers took."""
    passes, requests = result.cost.get("forward_passes"), result.cost.get("requests")
    if not passes or not requests:
        return None
    return Speed(
        benchmark,
        *method_and_pace(file, result),
        is_exact=options_of(file, result)["cache"] not in APPROXIMATE_CACHES,
        machine=machine_of(file),
        tokens_per_forward=result.cost.get("answer_tokens", 0.0) / passes,
        seconds=result.cost.get("seconds", 0.0) / requests,
    )
