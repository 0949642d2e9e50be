"""The kinds of figures: which rows and curves each shows, and what it says of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mdlm_leaderboard.figures.panels import (
    ONE_STEP,
    Line,
    Panel,
    base,
    by_model,
    decoding,
    limited,
    of_models,
    one_panel,
    panel_by_masks,
    with_masks,
)
from mdlm_leaderboard.rows import AUTOREGRESSIVE, Row

_QUESTIONS = ("left", "middle", "right")
_POSITION_AXIS = "number of distractor examples before the block"
_MASKS_AXIS = "number of appended masks"


@dataclass(frozen=True)
class Kind:
    """`paper` is the number of the paper's figure that shows the same; `panels` are those for a section's rows."""

    name: str
    paper: int
    caption: str
    x_label: str
    x_scale: Literal["linear", "log"]
    panels: Callable[[Sequence[Row]], list[Panel]]


def _position(rows: Sequence[Row]) -> list[Panel]:
    return one_panel(of_models(row, row.positions.get("right", {})) for row in base(rows))


def _position_by_question(rows: Sequence[Row]) -> list[Panel]:
    panels = [
        Panel("", f"question {place}", limited(of_models(row, row.positions.get(place, {})) for row in base(rows)))
        for place in _QUESTIONS
    ]
    return panels if any(panel.lines for panel in panels[:2]) else []


def _masks(rows: Sequence[Row]) -> list[Panel]:
    return one_panel(of_models(row, row.masks) for row in base(rows))


def _distractors(rows: Sequence[Row]) -> list[Panel]:
    # A single number of distractors is no curve, and stands in the figure of masks already.
    return one_panel(
        of_models(row, curve, masks if masks == AUTOREGRESSIVE else f"n = {masks}")
        for row in base(rows)
        for masks, curve in row.distractors.items()
        if len(curve) > 1
    )


def _dots(rows: Sequence[Row]) -> list[Panel]:
    return one_panel(
        of_models(row, curve, kind)
        for row in base(rows)
        if len(row.dots) > 1
        for kind, curve in (("masks", with_masks(row.masks)), ("dots", row.dots))
    )


def _unmasking(rows: Sequence[Row]) -> list[Panel]:
    panels = []
    measured = [row for row in rows if row.adapter is None and with_masks(row.masks)]
    for model, other, own in by_model(measured):
        lines = [Line(model, decoding(row), row.other, row.masks) for row in own]
        if len({line.kind for line in lines}) > 1:
            panels.append(Panel(model, other, limited(lines)))
    return panels


def _position_by_masks(rows: Sequence[Row]) -> list[Panel]:
    measured = [row for row in base(rows) if row.positions_by_masks]
    return [panel_by_masks(row, other) for _, other, own in by_model(measured) for row in own]


def _masks_adapters(rows: Sequence[Row]) -> list[Panel]:
    panels = []
    measured = [row for row in rows if row.steps in ONE_STEP and row.masks]
    for model, other, own in by_model(measured):
        if any(row.adapter for row in own):
            lines = [Line(model, row.adapter or "no adapter", row.other, row.masks) for row in own]
            panels.append(Panel(model, other, limited(lines)))
    return panels


def _position_by_masks_adapters(rows: Sequence[Row]) -> list[Panel]:
    measured = [row for row in rows if row.adapter and row.steps in ONE_STEP and row.positions_by_masks]
    return [
        panel_by_masks(row, ", ".join(filter(None, (row.adapter, other))))
        for _, other, own in by_model(measured)
        for row in own
    ]


KINDS = (
    Kind(
        "position",
        1,
        "Accuracy by the position of the relevant block. The question stands on the right, fixed-slot prompts.",
        _POSITION_AXIS,
        "linear",
        _position,
    ),
    Kind(
        "position-by-question",
        2,
        "Accuracy by the positions of relevant block and question. Fixed-slot prompts.",
        _POSITION_AXIS,
        "linear",
        _position_by_question,
    ),
    Kind(
        "masks",
        4,
        "Accuracy by the number of appended masks. Mixed examples, open-ended prompts, one step.",
        _MASKS_AXIS,
        "log",
        _masks,
    ),
    Kind(
        "distractors",
        5,
        "Accuracy by the number of distractor examples. n is the number of appended masks, or its share of the "
        "prompt's tokens; one step.",
        "number of distractor examples",
        "linear",
        _distractors,
    ),
    Kind(
        "dots",
        6,
        "Accuracy by the number of appended dots or masks. Dots follow the closing bracket of fixed-slot prompts, "
        "masks open-ended ones; one step.",
        "number of appended masks or dots",
        "linear",
        _dots,
    ),
    Kind(
        "unmasking",
        7,
        "Accuracy by the number of appended masks and the order of unmasking. Mixed examples, open-ended prompts.",
        _MASKS_AXIS,
        "log",
        _unmasking,
    ),
    Kind(
        "position-by-masks",
        8,
        "Accuracy by the position of the relevant block and the number n of appended masks. Open-ended prompts, "
        "one step.",
        _POSITION_AXIS,
        "linear",
        _position_by_masks,
    ),
    Kind(
        "masks-adapters",
        9,
        "Accuracy by the number of appended masks, with and without adapters. Mixed examples, open-ended prompts, "
        "one step.",
        _MASKS_AXIS,
        "log",
        _masks_adapters,
    ),
    Kind(
        "position-by-masks-adapters",
        10,
        "Accuracy by the position of the relevant block and the number n of appended masks, with adapters. "
        "Open-ended prompts, one step.",
        _POSITION_AXIS,
        "linear",
        _position_by_masks_adapters,
    ),
)
