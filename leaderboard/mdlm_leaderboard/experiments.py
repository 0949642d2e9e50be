"""The experiments of the few-shot suite: the axis of each, and the scores that belong to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mdlm_lm_eval.results.suite import SuiteTask

NO_MASKS = 0  # the number of masks of an autoregressive model
AUTOREGRESSIVE = "autoregressive"

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
