"""`mdlm-leaderboard build`: makes tables, figures and a page from result files."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from mdlm_leaderboard.board import Board, Section, board_of
from mdlm_leaderboard.columns import change, first_token_share
from mdlm_leaderboard.compare import published_in_words
from mdlm_leaderboard.findings import Finding, after_table, findings_of
from mdlm_leaderboard.rows import Estimate, Row
from mdlm_leaderboard.samples import write_samples
from mdlm_leaderboard.scores import BY_NAME, Scores, scores_of
from mdlm_leaderboard.templates import render, render_markdown, sentences
from mdlm_lm_eval.command_line import LM_EVAL_SEEDS, lm_eval_command
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.deviations import listed
from mdlm_lm_eval.results.files import UnusableFile, check_inside, check_regular, replaced_content
from mdlm_lm_eval.results.frame import COSTS, read_folder
from mdlm_lm_eval.results.redaction import redacted
from mdlm_lm_eval.results.result_file import ResultFile, missing
from mdlm_lm_eval.results.statistics import Score, against
from mdlm_lm_eval.results.text import UNMEASURED, aligned, noise_in_words, printable
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

_OF_ROW = ("model", "adapter", "source", "family", "steps", "unmasking")
_MOST_NAMED = 3  # models that a title names
_MOST_NOTES = 2**18  # bytes
_LONGEST_NOTE = 500  # letters
_YAML_TEXT = "tag:yaml.org,2002:str"
_SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
_MOST_BASELINES = 40  # the most rows of a table that has differences to each of its rows
_FACTS = ("preset", "processes", "device_name", "attn_implementation", "cache_audit", "batch_size", "torch")


def read_board(results: Path, title: str = "", leave_out: Path | None = None) -> Board:
    """The board of all result files under `results`, and of the notes about models in its `notes.yaml`.

    Raises OptionError if no file can be used, or a note cannot.
    """
    scores = scores_of(*read_folder(results, leave_out=leave_out))
    if scores.table.empty:
        reasons = "".join(f"\n  {printable(f'{path}: {reason}')}" for path, reason in scores.refused)
        what = "holds no usable result file (*.json of lm-eval)" if results.exists() else missing(results)
        raise OptionError(f"{results} {what}{reasons}")
    title = title or _title_of(scores)
    notes = _notes(results / "notes.yaml", {who.model for who in scores.table["who"]})
    return board_of(scores, title, notes)


def _notes(path: Path, models: set[str]) -> dict[str, str]:
    """Model -> the sentence about it. Nodes, and not values, are read: no tag is followed, and no anchor repeated."""
    if not os.path.lexists(path):
        return {}
    try:
        check_regular(path)
        check_inside(path, path.parent)
        if path.stat().st_size > _MOST_NOTES:
            raise UnusableFile(f"has more than {_MOST_NOTES >> 10} KiB")
        root = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise OptionError(f"{path}{line}: {error.problem}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise OptionError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(root, yaml.MappingNode):
        raise OptionError(f"{path}: must have a sentence for each of some models: {', '.join(sorted(models))}")
    notes: dict[str, str] = {}
    for name, sentence in root.value:
        are_texts = all(one.tag == _YAML_TEXT and one.value.strip() for one in (name, sentence))
        if not are_texts or len(sentence.value) > _LONGEST_NOTE:
            why = f"must be a model and a sentence of at most {_LONGEST_NOTE} letters"
        elif name.value in notes:
            why = f"{name.value!r} is a second note"
        elif name.value not in models:
            why = f"{name.value!r} is no model of {', '.join(sorted(models))}"
        else:
            notes[name.value] = redacted(" ".join(sentence.value.split()))
            continue
        raise OptionError(f"{path}, line {name.start_mark.line + 1}: {why}")
    return notes


def _title_of(scores: Scores) -> str:
    """A title with the models' names, or with their number if there are many."""
    names = [*dict.fromkeys(who.model for who in scores.table["who"])]
    few = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"Results of {few if len(names) <= _MOST_NAMED else f'{len(names)} models'}"


def build(results: Path, output: Path, title: str = "", with_samples: bool = False, baseline: str = "") -> Board:
    """Writes tables, figures and page of `results` into `output`.

    The output of an earlier build stays until everything is made; other files in `output` are not touched.
    `with_samples` adds a page of single questions for each result file with samples beside it. Differences are to the
    row with the words of `baseline`. Raises OptionError if nothing can be built.
    """
    board = read_board(results, title, leave_out=output.resolve())
    if baseline and not any(section.baseline(baseline) for section in board.sections):
        known = board.sections[0].rows[0].words
        raise OptionError(f"--baseline {baseline}: no row has these words, which are parts of {known}")
    with replaced_content(output, "figures", "questions", "report") as folder:
        findings = [*findings_of(board, folder)]
        said = [": ".join(filter(None, (one.title, one.sentence))) for one in findings if one.sentence]
        (folder / "LEADERBOARD.md").write_text(markdown(board, said, baseline), encoding="utf-8")
        points(board).map(_as_text).to_csv(folder / "leaderboard.csv", index=False)
        (folder / "leaderboard.json").write_text(_json(board), encoding="utf-8")
        pages = _write_questions(board, folder) if with_samples else {}
        write_page(board, findings, pages, _write_report(results, board, folder / "report"), folder, baseline)
    return board


def _write_report(results: Path, board: Board, output: Path) -> dict[str, str]:
    """Writes the report on models with a plan (`mdlm-sweep --config paper`): id of a row -> its link to the report."""
    from mdlm_leaderboard.report_page import write_report_of
    from mdlm_lm_eval.paper.answers import read_models

    if not any(results.rglob("plan.json")):
        return {}
    models, refused = read_models(results)
    planned = [model for model in models if model.plan]
    if planned:
        write_report_of(planned, refused, output)
    names = [(model.weights or model.name, model.adapter_weights or model.adapter) for model in planned]
    links = {name: f"report/index.html#model-{n}" for n, name in enumerate(names)}
    found = {
        row.id: (row.who.weights or row.who.model, row.who.adapter_weights or row.who.adapter) for row in board.rows
    }
    return {id: links[name] for id, name in found.items() if name in links}


def _write_questions(board: Board, folder: Path) -> dict[str, str]:
    """Writes a page of questions for each result file with samples beside it: path of the file -> path of the page."""
    pages = {}
    for row in board.rows:
        for number, path in enumerate(row.files):
            place = f"questions/{row.id}-{number}"
            with suppress(UnusableFile):
                write_samples([board.scores.files[path].place], folder / place)
                pages[path] = f"{place}/index.html"
    return pages


# The page and its tables


def write_page(
    board: Board,
    findings: Sequence[Finding],
    pages: Mapping[str, str],
    reports: Mapping[str, str],
    output: Path,
    baseline: str = "",
) -> None:
    """Writes `index.html` into `output` beside its figures.

    `pages` are the pages of questions by the path of their result file, `reports` links to the report by row. Style and
    script are in the page, and its content security policy allows only their hashes: text from a result file that looks
    like a script does not run.
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
        accuracy_at=lambda n: lambda row: _score(row.at_masks(n)),
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
        "after": after_table(board.main) if board.main else "",
        "terms": sentences("terms", section=board.main) if board.main else [],
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


def command_of(file: ResultFile) -> str:
    """The command of the sweep that made the file, or the `lm_eval` command that is equal to its settings."""
    if command := (file.config.get("mdlm_sweep") or {}).get("command"):
        return str(command)
    inside = {member for members in file.groups.values() for member in members}
    outermost = [name for name in (*file.groups, *file.tasks) if name not in inside]
    seeds = tuple(file.config.get(name) for name in _SEEDS)
    flags = {
        "model": file.model_kind,
        "model_args": file.config.get("model_args") or file.model_args,  # as typed, if there was a command
        "tasks": ",".join(outermost),
        "gen_kwargs": file.gen_kwargs,
        **_examples_of(file),
        "limit": file.limit,
        "batch_size": file.config.get("batch_size"),
        "apply_chat_template": file.chat_template,
        "fewshot_as_multiturn": str(file.fewshot_as_multiturn).lower() if file.chat_template else None,
        "system_instruction": file.system_instruction,
        "seed": None if seeds == LM_EVAL_SEEDS else ",".join(map(str, seeds)),
        "confirm_run_unsafe_code": any(task.config.get("unsafe_code") for task in file.tasks.values()),
    }
    return lm_eval_command(flags)


def _examples_of(file: ResultFile) -> dict[str, Any]:
    """The flags of few-shot examples: settings of the suite that are no defaults, or a number that all tasks share."""
    first, shots = next(iter(file.tasks.values())), {task.shots for task in file.tasks.values()}
    if not first.suite:
        return {"num_fewshot": first.shots} if len(shots) == 1 else {}
    given = [(name, first.metadata[name]) for name in DEFAULT_SETTINGS if name in first.metadata]
    return {"metadata": [f"{name}={value}" for name, value in given if value != DEFAULT_SETTINGS[name]]}


def points(board: Board) -> pd.DataFrame:
    """A tidy table, a line per number. `measure` is a column of the board, or an experiment with `series` and `x`."""
    lines = []
    for section in board.sections:
        setting = asdict(section.setting)
        for row in [*section.rows, *(seed for one in section.rows for seed in one.seeds)]:
            who = {"section": section.title, "id": row.id, "rank": row.rank, "settings": listed(row.who.other)}
            who |= {name: getattr(row.who, name) for name in _OF_ROW}
            for (experiment, series), curve in row.curves.items():
                for x, one in curve.items():
                    value = {
                        "value": one.mean,
                        "low": one.band.low,
                        "high": one.band.high,
                        "n_questions": one.n_questions,
                    }
                    place = {"measure": experiment, "series": series, "x": x, "frontier": one.mark, "bound": one.bound}
                    pb = {f"pb{quality}": tokens for quality, tokens in one.parallel_bench.items()}
                    parts = one.decomposition
                    shares = {f"share_{name}": share.mean for name, share in parts.shares.items()} if parts else {}
                    shares |= {"entropy": parts.entropy} if parts else {}
                    lines.append(who | setting | place | value | dict(one.costs) | pb | shares)
            for column in section.columns:
                if found := column.of(row, section.pair):
                    value = {"value": found.mean, "low": found.low, "high": found.high}
                    lines.append(who | setting | {"measure": column.name} | value)
    return pd.DataFrame(lines)


def _as_text(cell: object) -> object:
    """The cell, with an apostrophe before a text that a spreadsheet would run as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _json(board: Board) -> str:
    """The command of every result file, the files of each row (by its `id` in the CSV), and the files not used."""
    rows = {row.id: row.files for row in board.rows}
    commands = {path: command_of(file) for path, file in board.scores.files.items()}
    content = {"title": board.title, "rows": rows, "commands": commands, "refused": board.scores.refused}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
