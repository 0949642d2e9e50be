"""Renders `index.html` from a board."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mdlm_leaderboard.board import Board, Section
from mdlm_leaderboard.columns import change, first_token_share
from mdlm_leaderboard.experiments import BY_NAME
from mdlm_leaderboard.page.templates import render, render_markdown
from mdlm_leaderboard.published import published_in_words
from mdlm_leaderboard.ranking import at_masks
from mdlm_leaderboard.rows import Estimate, Row
from mdlm_leaderboard.scores import command_of
from mdlm_lm_eval.results.frame import COSTS
from mdlm_lm_eval.results.in_words import UNMEASURED, noise_in_words
from mdlm_lm_eval.results.markdown import aligned
from mdlm_lm_eval.results.result_file import ResultFile
from mdlm_lm_eval.results.statistics import Score, against

_MOST_BASELINES = 40  # the most rows of a table that has differences to each of its rows
_FACTS = ("preset", "processes", "device_name", "attn_implementation", "cache_audit", "batch_size", "torch")


def write_page(
    board: Board,
    findings: Sequence[Any],
    pages: Mapping[str, str],
    reports: Mapping[str, str],
    output: Path,
    baseline: str = "",
) -> None:
    """Writes `index.html` into `output` beside its figures.

    `findings` are those of `build`, `pages` the pages of questions by the path of their result file, `reports` links to
    the report by row. Style and script are in the page, and its content security policy allows only their hashes: text
    from a result file that looks like a script does not run.
    """
    chosen = [row.id for section in board.sections if (row := section.baseline(baseline))]

    def parameters_of(row: Row) -> int | None:
        number: int | None = board.scores.files[row.files[0]].config.get("model_num_parameters")
        return number

    render(
        "page",
        output / "index.html",
        board=board,
        findings=findings,
        pages=pages,
        reports=reports,
        open=[section for section in board.sections if not board.is_apart(section)],
        apart=[section for section in board.sections if board.is_apart(section)],
        **_words(board),
        versus=lambda section, row, of: _versus(section, row, of, chosen),
        accuracy_at=lambda n: lambda row: _score(at_masks(row, n)),
        share_at=lambda n, name: lambda row: first_token_share(row, n, name),
        of_benchmark=lambda name: lambda row: _score(row.benchmarks.get(name)),
        chosen=chosen,
        choices={name: sorted({getattr(row.who, name) for row in board.rows}) for name in ("family", "source")},
        dates=sorted(file.date for file in board.scores.files.values() if file.date),
        change=change,
        runs_of=lambda row: _runs_of([board.scores.files[path] for path in row.files]),
        parameters_of=parameters_of,
        sizes_of=lambda section: [*{parameters_of(row) for row in section.rows if not row.who.adapter}],
    )


def markdown(board: Board, findings: Iterable[str] = (), baseline: str = "") -> str:
    """The board as Markdown tables, for GitHub."""
    content = _words(board)
    return render_markdown("LEADERBOARD", board=board, findings=findings, wanted=baseline, against=against, **content)


def _words(board: Board) -> dict[str, Any]:
    """The variables that the templates of page and Markdown share."""
    return {
        "main": board.main,
        "benchmarked": next((section for section in board.sections if not section.is_suite), None),
        "has_sources": len({row.who.source for row in board.rows}) > 1,
        "cost_heads": COSTS,
        "experiments": BY_NAME,
        "cost_cells": {id: cells for section in board.sections for id, cells in _cost_cells(section).items()},
    }


def _cost_cells(section: Section) -> dict[str, list[tuple[str, float | None, str]]]:
    """Row -> its costs: name, number, and the number in words, with equally many decimals in a column."""
    columns = {name: [row.cost(name) for row in section.rows] for name in section.costs}
    shown = [[(name, *one) for one in zip(own, aligned(own), strict=True)] for name, own in columns.items()]
    return {row.id: [own[n] for own in shown] for n, row in enumerate(section.rows)}


def _score(one: Estimate | None) -> Score | None:
    return one.score if one else None


def _versus(section: Section, row: Row, of: Callable[[Row], Score | None], chosen: Sequence[str]) -> str:
    """JSON of a row's differences in words, by baseline. A large table has only its first and its chosen rows.

    "" if there is no difference.
    """
    own, is_small = of(row), len(section.rows) <= _MOST_BASELINES
    others = [other for n, other in enumerate(section.rows) if is_small or n == 0 or other.id in chosen]
    known = {other.id: score for other in others if other is not row and (score := of(other))}
    found = {id: against(score, own) for id, score in known.items()} if own else {}
    return json.dumps(found, separators=(",", ":")) if found else ""


def _runs_of(found: Sequence[ResultFile]) -> dict[str, Any]:
    """The commands of a row, each with its files, and the settings and versions that all of its files share."""
    commands: dict[str, list[ResultFile]] = {}
    for file in found:
        commands.setdefault(command_of(file), []).append(file)
    settings = [*map(_settings_of, found)]
    shared = {k: v for k, v in settings[0].items() if v not in (None, "") and all(one[k] == v for one in settings)}
    return {"commands": commands, "settings": shared}


def _settings_of(file: ResultFile) -> dict[str, Any]:
    n_questions = sum(task.n_questions for task in file.tasks.values())
    known = {"settings the server says": "said", "settings stated": "stated"} if file.server else {}
    return {
        **{name: file.mdlm.get(name) for name in _FACTS},
        **{words: ", ".join(f"{k}={v}" for k, v in file.server[name].items()) for words, name in known.items()},
        "settings unknown": ", ".join(file.server.get("unknown", ())),
        "published": published_in_words(file.mdlm.get("preset")),
        "rounding": noise_in_words(file.mdlm.get("check"), [*file.tasks, *file.groups], n_questions) or UNMEASURED,
        "mdlm_lm_eval": file.mdlm.get("package_version"),
        "dtype": file.dtype,
        "SHA-256 of mdlm_lm_eval": file.mdlm.get("package_digest"),
        **file.versions,
    }
