"""The leaderboard's experiments: one entry says which scores, axis, columns and figure an experiment has.

A new column of the leaderboard is a new entry of `EXPERIMENTS`: tables, exports, page and figures follow from it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Curve, Estimate, LeaderboardRow, Series, Speed
from mdlm_lm_eval.results.files import UnusableFile
from mdlm_lm_eval.results.statistics import Interval, paired_interval
from mdlm_lm_eval.results.suite import SuiteTask


@dataclass(frozen=True)
class SuiteRun:
    """How one task of the suite was run. `masks` are the fewest and the most appended, `mask_ratio` what was asked."""

    name: str
    task: SuiteTask
    masks: tuple[int, int]
    mask_ratio: float | None
    fillers: int
    distractors: int

    @property
    def n_masks(self) -> int:
        """The number of appended masks. Raises UnusableFile where questions differ in it."""
        low, high = self.masks
        if self.mask_ratio is not None:
            raise UnusableFile(f"has mask_ratio={self.mask_ratio:g} for {self.name!r}; it must be a number of masks")
        if low != high:
            raise UnusableFile(
                f"appends {low} to {high} masks in {self.name!r}; it must be one number of masks or a ratio"
            )
        return low


@dataclass(frozen=True)
class Summary:
    """A number drawn from the curve `series` of an experiment, with its paired band; its name in the exports."""

    name: str
    head: str
    words: str
    of: Callable[[Curve], Interval | None]
    series: Series = ""


@dataclass(frozen=True)
class Experiment:
    """One experiment. Its curves are accuracies over `x`, one for each series ("" where there is only one).

    places: series and x of a task's score, where it belongs to this experiment.
    head: an x as the head of a column, short and in words.
    series_words: a series in a table or a legend; `series_head` is the head above them.
    beyond: the setting that x varies, whose curves stand with the rows of the standard setting.
    is_wide: whether its curves are columns of the page's table; else they stand with the row's details.
    figure: caption of its plain figure, a line for each model; `paper` is that figure's number in the paper.
    speed: of the experiments over the benchmarks' speed, the x of one; their series are benchmark and method.
    """

    name: str
    title: str
    x_label: str
    head: Callable[[Any], tuple[str, str]]
    places: Callable[[SuiteRun], Iterable[tuple[Series, int]]] = lambda run: ()
    series_head: str = ""
    series_words: Callable[[Any], str] = str
    x_scale: Literal["linear", "log"] = "linear"
    summaries: tuple[Summary, ...] = ()
    beyond: str = ""
    is_wide: bool = True
    figure: str = ""
    paper: int = 0
    speed: Callable[[Speed], float] | None = None


def speed_curves(estimates: Iterable[Estimate]) -> dict[str, dict[Series, dict[Any, Estimate]]]:
    """The curves of a row's benchmarks over their speed: experiment -> benchmark and method -> x -> accuracy."""
    curves: dict[str, dict[Series, dict[Any, Estimate]]] = {}
    for estimate in estimates:
        for experiment in EXPERIMENTS:
            if estimate.speed is not None and experiment.speed is not None:
                series = f"{estimate.speed.benchmark}: {estimate.speed.method}"
                curve = curves.setdefault(experiment.name, {}).setdefault(series, {})
                curve[experiment.speed(estimate.speed)] = estimate
    return curves


def difference(first: Estimate, second: Estimate) -> Interval:
    """`second - first` of two accuracies, on the same questions where both say what each task has."""
    if not first.by_task or first.by_task.keys() != second.by_task.keys():
        return Interval(second.mean - first.mean, None, None, 0)
    return paired_interval(first.by_task, second.by_task)


def drop(curve: Curve) -> Interval | None:
    """Largest minus smallest accuracy, in percentage points, paired by task; None below two points."""
    if len(curve) < 2:
        return None
    worst, best = (pick(curve.values(), key=lambda estimate: estimate.mean) for pick in (min, max))
    return difference(worst, best).scaled(100)


def degradation(curve: Curve) -> Interval | None:
    """The drop in percent of the largest accuracy (paper, figure 22); None below two points."""
    best, points = max((estimate.mean for estimate in curve.values()), default=0.0), drop(curve)
    return points.scaled(1 / best) if points and best else None


def summary_of(row: LeaderboardRow, experiment: Experiment, summary: Summary) -> Interval | None:
    """A row's summary, or what a paper states of it."""
    if summary.name in row.stated:
        return Interval(row.stated[summary.name], None, None, 0)
    return summary.of(row.curve(experiment.name, summary.series))


def _masks(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [("", run.n_masks)] if run.task.group == "mdlm_context" and run.mask_ratio is None else []


def _positions(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [(run.task.question, run.task.position or 0)] if run.task.question else []


def _positions_by_masks(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    is_ours = run.task.is_open_ended and run.task.position is not None
    return [(run.n_masks, run.task.position or 0)] if is_ours else []


def _dots(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [("", run.fillers)] if run.task.group == "mdlm_slot" else []


def _distractors(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    if run.task.group != "mdlm_context":
        return []
    if run.mask_ratio is not None:
        return [(f"{100 * run.mask_ratio:g}%", run.distractors)]
    masks = DISTRACTOR_SERIES.get(run.n_masks)
    return [(masks, run.distractors)] if masks else []


# Mask counts that have a curve over the number of distractor examples (E5), and its series.
DISTRACTOR_SERIES = {NO_MASKS: AUTOREGRESSIVE, 2: "2"}


def _masks_head(n: int) -> tuple[str, str]:
    return ("AR", AUTOREGRESSIVE) if n == NO_MASKS else (str(n), f"{n} mask{'' if n == 1 else 's'}")


def _position_head(x: int) -> tuple[str, str]:
    return str(x), f"after {x} distractors"


def _n_masks(masks: Series) -> str:
    return AUTOREGRESSIVE if masks in (NO_MASKS, AUTOREGRESSIVE) else f"n = {masks}"


def _benchmark_head(column: str) -> tuple[str, str]:
    task, _, conditions = column.partition(" (")
    return task, conditions.removesuffix(")")


_DROP = "largest minus smallest accuracy, in percentage points"

EXPERIMENTS = (
    Experiment(
        name="masks",
        title="Masks appended (`mdlm_context`)",
        x_label="number of appended masks",
        head=_masks_head,
        places=_masks,
        x_scale="log",
        summaries=(
            Summary("drop_points", "drop (points)", _DROP, drop),
            Summary(
                "degradation_percent", "degradation (%)", "the drop in percent of the largest accuracy", degradation
            ),
        ),
        figure="Accuracy by the number of appended masks. Mixed examples, open-ended prompts, one step.",
        paper=4,
    ),
    Experiment(
        name="positions",
        title="Position of the relevant block (`mdlm_locality`)",
        x_label="number of distractor examples before the block",
        head=_position_head,
        places=_positions,
        series_head="question",
        series_words=lambda place: f"question {place}",
        summaries=(
            Summary(
                "locality_gap_points",
                "locality gap (points)",
                "best minus worst position, in percentage points",
                drop,
                "right",
            ),
        ),
    ),
    Experiment(
        name="positions_by_masks",
        title="Position of the relevant block at each mask count (`mdlm_position`)",
        x_label="number of distractor examples before the block",
        head=_position_head,
        places=_positions_by_masks,
        series_head="masks",
        series_words=_n_masks,
        is_wide=False,
    ),
    Experiment(
        name="dots",
        title="Dots after the answer (`mdlm_slot`)",
        x_label="number of appended masks or dots",
        head=lambda n: (str(n), f"{n} dots"),
        places=_dots,
        summaries=(Summary("dots_drop_points", "dots drop (points)", _DROP, drop),),
    ),
    Experiment(
        name="distractors",
        title="Number of distractor examples",
        x_label="number of distractor examples",
        head=lambda n: (str(n), f"{n} distractors"),
        places=_distractors,
        series_head="masks",
        series_words=_n_masks,
        beyond="fewshot_distractors",
        is_wide=False,
        figure="Accuracy by the number of distractor examples. n is the number of appended masks, or its share of the "
        "prompt's tokens; one step.",
        paper=5,
    ),
    Experiment(
        name="tokens_per_forward",
        title="Accuracy against tokens per forward pass",
        x_label="tokens per forward pass",
        head=lambda x: (f"{x:.2f}", f"{x:.2f} tokens a pass"),
        series_head="benchmark and method",
        is_wide=False,
        speed=lambda speed: speed.tokens_per_forward,
    ),
    Experiment(
        name="seconds",
        title="Accuracy against seconds",
        x_label="seconds per request",
        head=lambda x: (f"{x:.3g}", f"{x:.3g} s a request"),
        series_head="benchmark and method",
        is_wide=False,
        speed=lambda speed: speed.seconds,
    ),
    Experiment(
        name="benchmarks", title="Standard benchmarks", x_label="benchmark", head=_benchmark_head
    ),
)  # fmt: skip
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
SUMMARIES = tuple((experiment, summary) for experiment in EXPERIMENTS for summary in experiment.summaries)
