"""The experiments of the few-shot suite: which scores each has, over which axis."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mdlm_lm_eval.results.suite import SuiteTask

NO_MASKS = 0  # the number of masks of an autoregressive model
AUTOREGRESSIVE = "autoregressive"

Series = str | int


@dataclass(frozen=True)
class SuiteRun:
    """How one task of the suite was run. `masks` is None where questions differ in their number."""

    task: SuiteTask
    masks: int | None
    mask_ratio: float | None
    fillers: int
    relevant: int
    distractors: int


@dataclass(frozen=True)
class Experiment:
    """One experiment. Its curves are accuracies over `x`, one per series ("" where there is only one).

    head: an x in words. places: series and x of a task's score, where it belongs to this experiment.
    series_words: a series in words.
    beyond: the setting that x varies; its curves count to the rows of the standard setting.
    """

    name: str
    title: str
    x_label: str
    head: str
    places: Callable[[SuiteRun], Iterable[tuple[Series, int]]]
    series_words: Callable[[Any], str] = str
    beyond: str = ""


def _masks(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [("", run.masks)] if _is_mixed(run) and run.masks is not None else []


def _positions(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [(run.task.question, run.task.position or 0)] if run.task.question else []


def _positions_by_masks(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    is_block = run.task.is_open_ended and run.task.position is not None and run.masks is not None
    return [(run.masks or NO_MASKS, run.task.position or 0)] if is_block else []


def _dots(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [("", run.fillers)] if run.task.is_slot else []


def _distractors(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    if _is_mixed(run) and run.mask_ratio is not None:
        return [(f"{100 * run.mask_ratio:g}%", run.distractors)]
    return [(run.masks, run.distractors)] if _is_mixed(run) and run.masks in (NO_MASKS, 2) else []


def _relevant(run: SuiteRun) -> Iterable[tuple[Series, int]]:
    return [(run.masks, run.relevant)] if _is_mixed(run) and run.masks is not None else []


def _is_mixed(run: SuiteRun) -> bool:
    return run.task.is_open_ended and run.task.position is None


def _n_masks(masks: Series) -> str:
    return "no masks" if masks == NO_MASKS else f"n = {masks}"


def _question(place: Series) -> str:
    return f"question {place}"


_BLOCK, _AFTER = "number of distractor examples before the block", "after {} distractors"
_IN_TURN = "Position of the relevant block at each mask count (`mdlm_position`)"
_WRONG, _RIGHT = "number of distractor examples", "number of relevant examples"
EXPERIMENTS = (
    Experiment("masks", "Masks appended", "number of appended masks", "{} masks", _masks),
    Experiment("positions", "Position of the relevant block (`mdlm_locality`)", _BLOCK, _AFTER, _positions, _question),
    Experiment("positions_by_masks", _IN_TURN, _BLOCK, _AFTER, _positions_by_masks, _n_masks),
    Experiment("dots", "Dots after the answer (`mdlm_slot`)", "number of appended masks or dots", "{} dots", _dots),
    Experiment(
        "distractors", _WRONG.capitalize(), _WRONG, "{} distractors", _distractors, _n_masks, "fewshot_distractors"
    ),
    Experiment("relevant", _RIGHT.capitalize(), _RIGHT, "{} relevant", _relevant, _n_masks, "fewshot_relevant"),
)
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
