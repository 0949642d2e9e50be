"""The experiments of the few-shot suite: which scores each has, over which axis."""

from collections.abc import Callable
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

    head: an x in words, in the plural.
    series_words: a series in words.
    beyond: the setting that x varies; its curves count to the rows of the standard setting.
    """

    name: str
    title: str
    x_label: str
    head: str
    series_words: Callable[[Any], str] = str
    beyond: str = ""

    def at(self, x: int) -> str:
        """An x in words."""
        words = self.head.format(x)
        return words.removesuffix("s") if x == 1 else words


def places_of(run: SuiteRun) -> dict[str, tuple[Series, int]]:
    """The experiments that a task's score belongs to: name -> its series and x."""
    task, masks = run.task, run.masks
    found: dict[str, tuple[Series, int]] = {}
    if task.is_slot:
        found["dots"] = "", run.fillers
    if task.question:
        found["positions"] = task.question, task.position or 0
    if task.is_open_ended and task.position is not None and masks is not None:
        found["positions_by_masks"] = masks, task.position
    if task.is_open_ended and task.position is None:
        if masks is not None:
            found |= {"masks": ("", masks), "relevant": (masks, run.relevant)}
        if run.mask_ratio is not None:
            found["distractors"] = f"{100 * run.mask_ratio:g}%", run.distractors
        elif masks in (NO_MASKS, 2):
            found["distractors"] = masks, run.distractors
    return found


def _n_masks(masks: Series) -> str:
    return "no masks" if masks == NO_MASKS else f"n = {masks}"


_BLOCK, _AFTER = "number of distractor examples before the block", "after {} distractors"
_IN_TURN = "Position of the relevant block at each mask count (`mdlm_position`)"
_WRONG, _RIGHT = "number of distractor examples", "number of relevant examples"
EXPERIMENTS = (
    Experiment("masks", "Masks appended", "number of appended masks", "{} masks"),
    Experiment(
        "positions",
        "Position of the relevant block (`mdlm_locality`)",
        _BLOCK,
        _AFTER,
        lambda place: f"question {place}",
    ),
    Experiment("positions_by_masks", _IN_TURN, _BLOCK, _AFTER, _n_masks),
    Experiment("dots", "Dots after the answer (`mdlm_slot`)", "number of appended masks or dots", "{} dots"),
    Experiment("distractors", _WRONG.capitalize(), _WRONG, "{} distractors", _n_masks, "fewshot_distractors"),
    Experiment("relevant", _RIGHT.capitalize(), _RIGHT, "{} relevant", _n_masks, "fewshot_relevant"),
)
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
