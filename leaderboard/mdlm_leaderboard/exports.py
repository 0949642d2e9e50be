"""`leaderboard.csv` and `leaderboard.json`: a board for other programs."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mdlm_leaderboard.rows import Board, Estimate, Row

_ROW_FIELDS = ("id", "model", "adapter", "origin", "citation", "family", "steps", "unmasking", "other")
_DERIVED = ("drop_points", "dots_drop_points", "degradation_percent", "locality_gap_points")
_COLUMNS = (
    "section",
    *_ROW_FIELDS,
    "suite_version",
    "suite_hash",
    "fewshot_relevant",
    "fewshot_distractors",
    "fewshot_seed",
    "limit",
    "chat_template",
    "measure",
    "series",
    "x",
    "value",
    "low",
    "high",
    "n_tasks",
    "n_questions",
)


def leaderboard_csv(board: Board) -> str:
    """Tidy: one line a number. `measure` is a mapping of `Row` or a derived figure, `series` and `x` its keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for section in board.sections:
        for row in section.rows:
            setting = asdict(row.setting)
            who = {name: getattr(row, name) for name in _ROW_FIELDS} | setting | {"section": section.title}
            for measure, series, x, estimate in _estimates(row):
                numbers = asdict(estimate)
                writer.writerow(
                    who | {"measure": measure, "series": series, "x": x, "value": numbers.pop("mean")} | numbers
                )
            for measure in _DERIVED:
                if (value := getattr(row, measure)) is not None:
                    writer.writerow(who | {"measure": measure, "value": value})
    return text.getvalue()


def leaderboard_json(board: Board) -> str:
    """Sections of rows, with the runs behind each row, and what is not used."""
    content = {
        "sections": [
            {"title": section.title, "why_apart": section.why_apart, "rows": [_row(row) for row in section.rows]}
            for section in board.sections
        ],
        "refused": [asdict(one) for one in board.refused],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"


def _row(row: Row) -> dict[str, Any]:
    fields = asdict(row)
    if fields["published"] is None:
        del fields["published"]
    return fields | {name: getattr(row, name) for name in _DERIVED}


def _estimates(row: Row) -> Iterator[tuple[str, str | int, str | int, Estimate]]:
    for measure, curve in (("masks", row.masks), ("dots", row.dots), ("benchmarks", row.benchmarks)):
        for x, estimate in curve.items():
            yield measure, "", x, estimate
    nested = (
        ("positions", row.positions),
        ("positions_by_masks", row.positions_by_masks),
        ("distractors", row.distractors),
    )
    for measure, curves in nested:
        for series, by_x in curves.items():
            for x, estimate in by_x.items():
                yield measure, series, x, estimate
