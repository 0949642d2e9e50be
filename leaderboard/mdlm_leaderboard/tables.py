"""`LEADERBOARD.md`: a board as Markdown tables."""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Board, Curve, Estimate, Row, Section

_PLACES = ("right", "middle", "left")
_INTRODUCTION = """# Leaderboard

Accuracy in percent, mean over the 16 few-shot tasks with its 95% band over tasks; chance is 33.3. "Drop" is the largest
minus the smallest accuracy over the mask counts in percentage points, "degradation" that in percent of the largest, the
"locality gap" the best minus the worst block position with the question on the right. Scores share a table only where
suite version, examples and `--limit` are the same, and a column only where the mask count is. Written by
`mdlm-leaderboard build`.
"""


def leaderboard_markdown(board: Board) -> str:
    """The whole file. Text out of result files is escaped: it can neither break a table nor become HTML."""
    parts = [_INTRODUCTION]
    for section in board.sections:
        parts.append(f"## {escape(section.title)}\n")
        if section.why_apart:
            parts.append(f"Set apart: {escape(section.why_apart)}.\n")
        parts += _published(section.rows) if section.rows[0].published else _measured(section)
    if board.refused:
        parts.append("## Not used\n")
        parts.append("".join(f"- {escape(one.path)}: {escape(one.reason)}\n" for one in board.refused))
    return "\n".join(parts)


def escape(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line and inside a table cell."""
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", html.escape(_one_line(text).strip(), quote=False))


def _one_line(text: str) -> str:
    """`text` with blanks for line ends and other control characters."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)


def _measured(section: Section) -> list[str]:
    tables = [
        ("### Masks appended (`mdlm_context`)", _mask_table(section.rows)),
        *(
            (
                f"### Position of the relevant block, question {place} (`mdlm_locality`)",
                _place_table(section.rows, place),
            )
            for place in _PLACES
        ),
        ("### Position of the relevant block at each mask count (`mdlm_position`)", _position_table(section.rows)),
        ("### Dots after the answer (`mdlm_slot`)", _dots_table(section.rows)),
        ("### Number of distractor examples", _distractor_table(section.rows)),
        ("### Benchmarks", _benchmark_table(section.rows)),
    ]
    parts = [text for heading, table in tables if table for text in (heading + "\n", table)]
    return [*parts, "### Commands\n", _commands(section.rows)]


def _published(rows: Sequence[Row]) -> list[str]:
    lines = [
        [
            *_who(row),
            _number(row.drop_points),
            _number(row.dots_drop_points),
            _number(row.degradation_percent),
            escape(row.citation),
        ]
        for row in rows
    ]
    heads = [*_WHO, "drop with masks (points)", "drop with dots (points)", "degradation (%)", "source"]
    return [_table(heads, lines)]


_WHO = ("model", "adapter", "steps", "unmasking", "other settings")


def _who(row: Row) -> list[str]:
    return [escape(text) or "–" for text in (row.model, row.adapter or "", row.steps, row.unmasking, row.other)]


def _mask_table(rows: Iterable[Row]) -> str:
    rows = [row for row in rows if row.masks]
    heads = {n: _masks(n) for n in _keys(row.masks for row in rows)}
    return _curves(
        rows,
        lambda row: row.masks,
        heads,
        {"drop (points)": lambda row: row.drop_points, "degradation (%)": lambda row: row.degradation_percent},
    )


def _place_table(rows: Iterable[Row], place: str) -> str:
    rows = [row for row in rows if place in row.positions]
    heads = {x: f"after {x} distractors" for x in _keys(row.positions[place] for row in rows)}
    gap = {"locality gap (points)": lambda row: row.locality_gap_points} if place == "right" else {}
    return _curves(rows, lambda row: row.positions[place], heads, gap)


def _position_table(rows: Iterable[Row]) -> str:
    pairs = [(row, n) for row in rows for n in sorted(row.positions_by_masks)]
    xs = _keys(row.positions_by_masks[n] for row, n in pairs)
    lines = [
        [*_who(row), AUTOREGRESSIVE if n == NO_MASKS else str(n), *(_cell(row.positions_by_masks[n], x) for x in xs)]
        for row, n in pairs
    ]
    return _table([*_WHO, "masks", *(f"after {x} distractors" for x in xs)], lines) if lines else ""


def _dots_table(rows: Iterable[Row]) -> str:
    rows = [row for row in rows if row.dots]
    heads = {n: f"{n} dots" for n in _keys(row.dots for row in rows)}
    return _curves(rows, lambda row: row.dots, heads, {"drop (points)": lambda row: row.dots_drop_points})


def _distractor_table(rows: Iterable[Row]) -> str:
    # A single number of distractors is no curve, and stands in the table of masks already.
    pairs = [(row, masks) for row in rows for masks, curve in row.distractors.items() if len(curve) > 1 or "%" in masks]
    xs = _keys(row.distractors[masks] for row, masks in pairs)
    lines = [[*_who(row), masks, *(_cell(row.distractors[masks], x) for x in xs)] for row, masks in pairs]
    return _table([*_WHO, "masks", *(f"{x} distractors" for x in xs)], lines) if lines else ""


def _benchmark_table(rows: Iterable[Row]) -> str:
    rows = [row for row in rows if row.benchmarks]
    columns = sorted({column for row in rows for column in row.benchmarks})
    lines = [
        [escape(text) or "–" for text in (row.model, row.adapter or "", row.other, column)]
        + [_percent(row.benchmarks[column]), str(row.benchmarks[column].n_questions)]
        for column in columns
        for row in rows
        if column in row.benchmarks
    ]
    return _table(["model", "adapter", "other settings", "benchmark", "score", "questions"], lines) if lines else ""


def _curves(
    rows: Sequence[Row],
    curve: Callable[[Row], Curve],
    heads: Mapping[int, str],
    extra: Mapping[str, Callable[[Row], float | None]],
) -> str:
    lines = [
        [*_who(row), *(_cell(curve(row), x) for x in heads), *(_number(value(row)) for value in extra.values())]
        for row in rows
    ]
    return _table([*_WHO, *heads.values(), *extra], lines) if lines else ""


def _commands(rows: Iterable[Row]) -> str:
    """Every row's commands as code, which Markdown shows as it is, each with its result file."""
    blocks = []
    for row in rows:
        name = row.model + (f" with {row.adapter}" if row.adapter else "")
        settings = ", ".join(filter(None, [f"steps {row.steps}" if row.steps else "", row.unmasking, row.other]))
        blocks.append(f"{escape(name)} ({escape(settings)}):\n")
        lines = [f"    {_one_line(run.command)}  # {_one_line(run.path)}" for run in row.runs]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _masks(n: int) -> str:
    return {NO_MASKS: AUTOREGRESSIVE, 1: "1 mask"}.get(n, f"{n} masks")


def _keys(curves: Iterable[Mapping[int, Any]]) -> list[int]:
    return sorted({x for curve in curves for x in curve})


def _cell(curve: Curve, x: int) -> str:
    return _percent(curve[x]) if x in curve else "–"


def _percent(estimate: Estimate) -> str:
    band = "" if estimate.high is None else f" ± {100 * (estimate.high - estimate.mean):.1f}"
    return f"{100 * estimate.mean:.1f}{band}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rule, *lines))
