"""The kinds of figures: which rows and curves each shows, and what it says of them.

An experiment's axis comes from `experiments.EXPERIMENTS`, and so does its plain figure, a line for each model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.experiments import BY_NAME, EXPERIMENTS, Experiment
from mdlm_leaderboard.figures.panels import (
    Line,
    Panel,
    base,
    by_model,
    decoding,
    limited,
    of_models,
    one_panel,
    panel_by_masks,
)
from mdlm_leaderboard.rows import ONE_STEP, Curve, LeaderboardRow
from mdlm_leaderboard.seeds import adapter_of, folded, over_seeds, seeds_of, with_masks

_ABOUT_SPEED = " Each line is one way of decoding at several paces; its band is over questions."
_QUESTIONS = ("left", "middle", "right")


Panels = Callable[[Sequence[LeaderboardRow]], list[Panel]]


@dataclass(frozen=True)
class FigureKind:
    """`paper` is the number of the paper's figure that shows the same; `panels` are those for a section's rows."""

    name: str
    paper: int
    caption: str
    experiment: Experiment
    panels: Panels


def _plain(experiment: Experiment) -> Panels:
    return lambda rows: one_panel(
        of_models(row, curve, experiment.series_words(series) if series else "")
        for row in base(rows)
        for series, curve in row.series(experiment.name).items()
    )


def _position(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    return one_panel(of_models(row, row.curve("positions", "right")) for row in base(rows))


def _position_by_question(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    panels = [
        Panel("", f"question {place}", limited(of_models(row, row.curve("positions", place)) for row in base(rows)))
        for place in _QUESTIONS
    ]
    return panels if any(panel.lines for panel in panels[:2]) else []


def _dots(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    return one_panel(
        of_models(row, curve, kind)
        for row in base(rows)
        if len(row.curve("dots")) > 1
        for kind, curve in (("masks", with_masks(row.curve("masks"))), ("dots", row.curve("dots")))
    )


def _unmasking(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    panels = []
    measured = [row for row in rows if row.adapter is None and with_masks(row.curve("masks"))]
    for model, other, own in by_model(measured):
        lines = [Line(model, decoding(row), row.other, row.curve("masks")) for row in own]
        if len({line.kind for line in lines}) > 1:
            panels.append(Panel(model, other, limited(lines)))
    return panels


def _position_by_masks(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    measured = [row for row in base(rows) if row.series("positions_by_masks")]
    return [panel_by_masks(row, other) for _, other, own in by_model(measured) for row in own]


def _masks_adapters(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    panels = []
    measured = [row for row in rows if row.steps in ONE_STEP and row.curve("masks")]
    for model, other, own in by_model(measured):
        if any(row.adapter for row in own):
            seeds: dict[tuple[str, str], list[Curve]] = {}
            for row in own:
                seeds.setdefault((adapter_of(row) or "no adapter", row.other), []).append(row.curve("masks"))
            lines = [Line(model, *kind, over_seeds(curves)) for kind, curves in seeds.items()]
            panels.append(Panel(model, other, limited(lines)))
    return panels


def _position_by_masks_adapters(rows: Sequence[LeaderboardRow]) -> list[Panel]:
    adapted = folded(row for row in rows if row.adapter and row.steps in ONE_STEP)
    measured = [row for row in adapted if row.series("positions_by_masks")]
    return [
        panel_by_masks(row, ", ".join(filter(None, (adapter_of(row) if seeds_of(row) else row.adapter, other))))
        for _, other, own in by_model(measured)
        for row in own
    ]


def _speed(experiment: Experiment) -> Panels:
    """A panel for each benchmark, exact and approximate answers apart, a line for each way of decoding.

    What all ways share is not named, nor are a benchmark's conditions where its task alone tells it apart.
    """

    def panels(rows: Sequence[LeaderboardRow]) -> list[Panel]:
        found = [
            (row, curve, speed)
            for row in rows
            for curve in row.series(experiment.name).values()
            if (speed := next(iter(curve.values())).speed)
        ]
        methods = {speed.method: speed.method.split(", ") for _, _, speed in found}
        shared = set.intersection(*map(set, methods.values())) if len(methods) > 1 else set()
        tasks = {speed.benchmark: speed.benchmark.partition(" (")[0] for _, _, speed in found}
        is_enough = len(set(tasks.values())) == len(tasks)
        lines: dict[str, list[Line]] = {}
        for row, curve, speed in found:
            task = tasks[speed.benchmark] if is_enough else speed.benchmark
            detail = f"{task}, {'exact' if speed.is_exact else 'approximate'}"
            own = [part for part in methods[speed.method] if part not in shared]
            kind = ", ".join([*filter(None, [row.adapter]), *own])
            lines.setdefault(detail, []).append(of_models(row, curve, kind))
        return [Panel("", detail, limited(of_panel)) for detail, of_panel in lines.items()]

    return panels


_KINDS = (
    *(FigureKind(one.name, one.paper, one.figure, one, _plain(one)) for one in EXPERIMENTS if one.figure),
    FigureKind(
        "position",
        1,
        "Accuracy by the position of the relevant block. The question stands on the right, fixed-slot prompts.",
        BY_NAME["positions"],
        _position,
    ),
    FigureKind(
        "position-by-question",
        2,
        "Accuracy by the positions of relevant block and question. Fixed-slot prompts.",
        BY_NAME["positions"],
        _position_by_question,
    ),
    FigureKind(
        "dots",
        6,
        "Accuracy by the number of appended dots or masks. Dots follow the closing bracket of fixed-slot prompts, "
        "masks open-ended ones; one step.",
        BY_NAME["dots"],
        _dots,
    ),
    FigureKind(
        "unmasking",
        7,
        "Accuracy by the number of appended masks and the order of unmasking. Mixed examples, open-ended prompts.",
        BY_NAME["masks"],
        _unmasking,
    ),
    FigureKind(
        "position-by-masks",
        8,
        "Accuracy by the position of the relevant block and the number n of appended masks. Open-ended prompts, "
        "one step.",
        BY_NAME["positions_by_masks"],
        _position_by_masks,
    ),
    FigureKind(
        "masks-adapters",
        9,
        "Accuracy by the number of appended masks, with and without adapters. Mixed examples, open-ended prompts, "
        "one step; of several seeds the mean, with a band from the lowest to the highest.",
        BY_NAME["masks"],
        _masks_adapters,
    ),
    FigureKind(
        "position-by-masks-adapters",
        10,
        "Accuracy by the position of the relevant block and the number n of appended masks, with adapters. "
        "Open-ended prompts, one step; of several seeds the mean.",
        BY_NAME["positions_by_masks"],
        _position_by_masks_adapters,
    ),
    *(
        FigureKind(one.name.replace("_", "-"), 0, f"{one.title}.{_ABOUT_SPEED}", one, _speed(one))
        for one in EXPERIMENTS
        if one.speed
    ),
)
# In the order of the paper's figures; those of none come last.
KINDS = tuple(sorted(_KINDS, key=lambda kind: kind.paper or len(_KINDS) + 2))
