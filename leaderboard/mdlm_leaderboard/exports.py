"""`leaderboard.csv` and `leaderboard.json`: a board for other programs."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from mdlm_leaderboard.experiments import EXPERIMENTS, SUMMARIES, summary_of
from mdlm_leaderboard.rows import Board, LeaderboardRow, Setting

_ROW_FIELDS = ("id", "model", "adapter", "origin", "citation", "family", "steps", "unmasking", "other")
_COLUMNS = (
    "section",
    *_ROW_FIELDS,
    *Setting.__dataclass_fields__,
    "measure",
    "series",
    "x",
    "value",
    "low",
    "high",
    "n_tasks",
    "n_questions",
)
# A spreadsheet takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def leaderboard_csv(board: Board) -> str:
    """Tidy: one line a number. `measure` is an experiment, whose keys are `series` and `x`, or a summary."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for section in board.sections:
        for row in section.rows:
            who = {name: getattr(row, name) for name in _ROW_FIELDS} | asdict(row.setting) | {"section": section.title}
            for numbers in _numbers(row):
                writer.writerow({name: _no_formula(value) for name, value in (who | numbers).items()})
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
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _row(row: LeaderboardRow) -> dict[str, Any]:
    summaries = {summary.name: summary_of(row, experiment, summary) for experiment, summary in SUMMARIES}
    return asdict(row) | {name: asdict(value) if value else None for name, value in summaries.items()}


def _numbers(row: LeaderboardRow) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for experiment in EXPERIMENTS:
        for series, curve in row.series(experiment.name).items():
            for x, estimate in curve.items():
                numbers = {"value": estimate.mean, "low": estimate.low, "high": estimate.high}
                numbers |= {"n_tasks": estimate.n_tasks, "n_questions": estimate.n_questions}
                found.append({"measure": experiment.name, "series": series, "x": x, **numbers})
    for experiment, summary in SUMMARIES:
        if value := summary_of(row, experiment, summary):
            found.append({"measure": summary.name, "value": value.mean, "low": value.low, "high": value.high})
    return found


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
