"""What every figure shows: its panels and lines, chosen from the rows of a board."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Board, Curve, Row

# As many colours as can be told apart on white, by colour-blind readers too.
MAX_MODELS = 7
MAX_PANELS = 8
MAX_LINES_PER_MODEL = 8
_QUESTIONS = ("left", "middle", "right")
_ONE_STEP = ("1", AUTOREGRESSIVE)
_POSITION_AXIS = "distractor examples before the block"
_MASKS_AXIS = "appended masks"

Build = Callable[[Sequence[Row]], list["Panel"]]


@dataclass(frozen=True)
class Line:
    """One curve. `kind` is what tells a model's lines apart in this figure; `other` the row's other settings."""

    model: str
    kind: str
    other: str
    curve: Curve


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Its title is model, where all lines are of one, and detail; a single panel needs neither."""

    model: str
    detail: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of one section. `stem` is its file without ending, relative to the output folder, with slashes.

    `paper` is the number of the paper's figure that shows the same. `section` is the section's title.
    """

    stem: str
    paper: int
    section: str
    caption: str
    x_label: str
    x_scale: Literal["linear", "log"]
    panels: tuple[Panel, ...]

    @property
    def title(self) -> str:
        """The caption's first sentence, without its stop."""
        return self.caption.partition(". ")[0]

    @property
    def described(self) -> str:
        """Which lines there are, for those who cannot see them."""
        lines = [line for panel in self.panels for line in panel.lines]
        models = dict.fromkeys(line.model for line in lines)
        kinds = dict.fromkeys(line.kind for line in lines if line.kind)
        return "; ".join(filter(None, (", ".join(models), ", ".join(kinds))))


def model_order(board: Board) -> tuple[str, ...]:
    """The models that figures show, of most measured points first; a model's place here gives its colour."""
    points: Counter[str] = Counter()
    for row in board.rows:
        points[row.model] += sum(len(curve) for curve in _curves(row))
    return tuple(model for model, n in points.most_common(MAX_MODELS) if n)


def figures_of(board: Board) -> list[Figure]:
    """Every figure for which there is data, section by section: settings never share one."""
    shown = set(model_order(board))
    folders: list[str] = []
    figures = []
    for n, section in enumerate(board.sections):
        folders.append(f"figures/{_slug(section.title)}" if n else "figures")
        folder = folders[-1] + (f"-{count}" if (count := folders.count(folders[-1])) > 1 else "")
        rows = [row for row in section.rows if row.model in shown]
        for kind in _KINDS:
            if panels := kind.panels(rows)[:MAX_PANELS]:
                figures.append(
                    Figure(
                        stem=f"{folder}/{kind.name}",
                        paper=kind.paper,
                        section=section.title,
                        caption=kind.caption,
                        x_label=kind.x_label,
                        x_scale=kind.x_scale,
                        panels=tuple(panels),
                    )
                )
    return figures


@dataclass(frozen=True)
class _Kind:
    name: str
    paper: int
    caption: str
    x_label: str
    x_scale: Literal["linear", "log"]
    panels: Build


def _position(rows: Sequence[Row]) -> list[Panel]:
    return _one_panel(_of_models(row, row.positions.get("right", {})) for row in _base(rows))


def _position_by_question(rows: Sequence[Row]) -> list[Panel]:
    panels = [
        Panel("", f"question {place}", _limited(_of_models(row, row.positions.get(place, {})) for row in _base(rows)))
        for place in _QUESTIONS
    ]
    return panels if any(panel.lines for panel in panels[:2]) else []


def _masks(rows: Sequence[Row]) -> list[Panel]:
    return _one_panel(_of_models(row, row.masks) for row in _base(rows))


def _distractors(rows: Sequence[Row]) -> list[Panel]:
    # A single number of distractors is no curve, and stands in the figure of masks already.
    return _one_panel(
        _of_models(row, curve, masks if masks == AUTOREGRESSIVE else f"n = {masks}")
        for row in _base(rows)
        for masks, curve in row.distractors.items()
        if len(curve) > 1
    )


def _dots(rows: Sequence[Row]) -> list[Panel]:
    return _one_panel(
        _of_models(row, curve, kind)
        for row in _base(rows)
        if len(row.dots) > 1
        for kind, curve in (("masks", _with_masks(row.masks)), ("dots", row.dots))
    )


def _unmasking(rows: Sequence[Row]) -> list[Panel]:
    panels = []
    measured = [row for row in rows if row.adapter is None and _with_masks(row.masks)]
    for model, other, own in _by_model(measured):
        lines = [Line(model, _decoding(row), row.other, row.masks) for row in own]
        if len({line.kind for line in lines}) > 1:
            panels.append(Panel(model, other, _limited(lines)))
    return panels


def _position_by_masks(rows: Sequence[Row]) -> list[Panel]:
    measured = [row for row in _base(rows) if row.positions_by_masks]
    return [_panel_by_masks(row, other) for _, other, own in _by_model(measured) for row in own]


def _masks_adapters(rows: Sequence[Row]) -> list[Panel]:
    panels = []
    measured = [row for row in rows if row.steps in _ONE_STEP and row.masks]
    for model, other, own in _by_model(measured):
        if any(row.adapter for row in own):
            lines = [Line(model, row.adapter or "no adapter", row.other, row.masks) for row in own]
            panels.append(Panel(model, other, _limited(lines)))
    return panels


def _position_by_masks_adapters(rows: Sequence[Row]) -> list[Panel]:
    measured = [row for row in rows if row.adapter and row.steps in _ONE_STEP and row.positions_by_masks]
    return [
        _panel_by_masks(row, ", ".join(filter(None, (row.adapter, other))))
        for _, other, own in _by_model(measured)
        for row in own
    ]


_KINDS = (
    _Kind(
        "position",
        1,
        "Accuracy by the position of the relevant block. The question stands on the right, fixed-slot prompts.",
        _POSITION_AXIS,
        "linear",
        _position,
    ),
    _Kind(
        "position-by-question",
        2,
        "Accuracy by the positions of relevant block and question. Fixed-slot prompts.",
        _POSITION_AXIS,
        "linear",
        _position_by_question,
    ),
    _Kind(
        "masks",
        4,
        "Accuracy by the number of appended masks. Mixed examples, open-ended prompts, one step.",
        _MASKS_AXIS,
        "log",
        _masks,
    ),
    _Kind(
        "distractors",
        5,
        "Accuracy by the number of distractor examples. n is the number of appended masks, or its share of the "
        "prompt's tokens; one step.",
        "distractor examples",
        "linear",
        _distractors,
    ),
    _Kind(
        "dots",
        6,
        "Accuracy by the number of appended dots or masks. Dots follow the closing bracket of fixed-slot prompts, "
        "masks open-ended ones; one step.",
        "appended masks or dots",
        "linear",
        _dots,
    ),
    _Kind(
        "unmasking",
        7,
        "Accuracy by the number of appended masks and the order of unmasking. Mixed examples, open-ended prompts.",
        _MASKS_AXIS,
        "log",
        _unmasking,
    ),
    _Kind(
        "position-by-masks",
        8,
        "Accuracy by the position of the relevant block and the number n of appended masks. Open-ended prompts, "
        "one step.",
        _POSITION_AXIS,
        "linear",
        _position_by_masks,
    ),
    _Kind(
        "masks-adapters",
        9,
        "Accuracy by the number of appended masks, with and without adapters. Mixed examples, open-ended prompts, "
        "one step.",
        _MASKS_AXIS,
        "log",
        _masks_adapters,
    ),
    _Kind(
        "position-by-masks-adapters",
        10,
        "Accuracy by the position of the relevant block and the number n of appended masks, with adapters. "
        "Open-ended prompts, one step.",
        _POSITION_AXIS,
        "linear",
        _position_by_masks_adapters,
    ),
)


def _curves(row: Row) -> Iterable[Curve]:
    return (
        row.masks,
        row.dots,
        *row.positions.values(),
        *row.positions_by_masks.values(),
        *row.distractors.values(),
    )


def _base(rows: Iterable[Row]) -> list[Row]:
    """Models as they are, decoded in one step."""
    return [row for row in rows if row.adapter is None and row.steps in _ONE_STEP]


def _with_masks(curve: Curve) -> Curve:
    return {n: estimate for n, estimate in curve.items() if n != NO_MASKS}


def _by_model(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Rows of one model and the same other settings, which are named where the model has several."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.other), []).append(row)
    settings = Counter(model for model, _ in groups)
    for (model, other), own in groups.items():
        yield model, other if settings[model] > 1 else "", own


def _decoding(row: Row) -> str:
    if row.steps == AUTOREGRESSIVE:
        return AUTOREGRESSIVE
    plural = "" if row.steps == "1" else "s"
    return f"{row.unmasking} ({row.steps} step{plural})" if row.steps.isdecimal() else f"{row.unmasking}, {row.steps}"


def _of_models(row: Row, curve: Curve, kind: str = "") -> Line:
    """A line of a panel that several models share."""
    return Line(row.model, kind, row.other, curve)


def _panel_by_masks(row: Row, detail: str) -> Panel:
    curves = sorted(row.positions_by_masks.items())
    lines = (Line(row.model, AUTOREGRESSIVE if n == NO_MASKS else f"n = {n}", row.other, curve) for n, curve in curves)
    return Panel(row.model, detail, _limited(lines))


def _one_panel(lines: Iterable[Line]) -> list[Panel]:
    panel = Panel("", "", _limited(lines))
    return [panel] if panel.lines else []


def _limited(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Those with points, of each model no more than there are line styles."""
    kept: list[Line] = []
    per_model: Counter[str] = Counter()
    for line in lines:
        if line.curve and per_model[line.model] < MAX_LINES_PER_MODEL:
            per_model[line.model] += 1
            kept.append(line)
    return tuple(kept)


def _slug(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))[:80].strip("-") or "section"
