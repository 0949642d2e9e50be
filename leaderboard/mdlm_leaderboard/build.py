"""`mdlm-leaderboard build`: makes tables, figures and a page from result files."""

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from mdlm_leaderboard.board import Board, Section, board_of
from mdlm_leaderboard.findings import masks_finding, speed_findings
from mdlm_leaderboard.scores import BENCHMARKS, Scores, command_of, scores_of
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.deviations import listed
from mdlm_lm_eval.results.files import UnusableFile, check_inside, check_regular, replaced_content
from mdlm_lm_eval.results.frame import read_folder
from mdlm_lm_eval.results.printable import printable
from mdlm_lm_eval.results.redaction import redacted
from mdlm_lm_eval.results.result_file import missing

_OF_ROW = ("model", "adapter", "source", "family", "steps", "unmasking")
_MOST_FIGURES = 4  # benchmarks of a table that have figures
_MOST_NAMED = 3  # models that a title names
_MOST_NOTES = 2**18  # bytes
_LONGEST_NOTE = 500  # letters
_YAML_TEXT = "tag:yaml.org,2002:str"


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


class Finding(NamedTuple):
    """A figure of a section, with the sentence about its numbers.

    title: the benchmark, "" for the suite.
    sentence: "" if there is nothing to say.
    stem: the figure's path without ending.
    shows: its caption.
    described: the figure in words, for readers who cannot see it.
    """

    section: Section
    title: str
    sentence: str
    stem: str
    shows: str
    described: str


def build(results: Path, output: Path, title: str = "", with_samples: bool = False, baseline: str = "") -> Board:
    """Writes tables, figures and page of `results` into `output`.

    The output of an earlier build stays until everything is made; other files in `output` are not touched.
    `with_samples` adds a page of single questions for each result file with samples beside it. Differences are to the
    row with the words of `baseline`. Raises OptionError if nothing can be built.
    """
    from mdlm_leaderboard.figures import drawn, headline, save_light_and_dark
    from mdlm_leaderboard.page.write import markdown, write_page
    from mdlm_lm_eval.results.figure_style import colours_of

    board = read_board(results, title, leave_out=output.resolve())
    if baseline and not any(section.baseline(baseline) for section in board.sections):
        known = board.sections[0].rows[0].words
        raise OptionError(f"--baseline {baseline}: no row has these words, which are parts of {known}")
    found = [row.who for row in board.rows]
    colours = colours_of([*(who.model for who in found), *(who.recipe for who in found if who.adapter)])
    findings: list[Finding] = []
    with replaced_content(output, "figures", "questions", "report") as folder:
        if board.main and (sentence := masks_finding(board.main)):
            chart = headline(board.main)
            save_light_and_dark(drawn(chart, colours), folder / "figures/headline")
            findings = [Finding(board.main, "", sentence, "figures/headline", chart.caption, chart.described)]
        for section in (one for one in board.sections if not one.is_suite):
            findings += _of_benchmarks(board, section, folder / "figures", colours)
        said = [": ".join(filter(None, (one.title, one.sentence))) for one in findings if one.sentence]
        (folder / "LEADERBOARD.md").write_text(markdown(board, said, baseline), encoding="utf-8")
        points(board).map(_as_text).to_csv(folder / "leaderboard.csv", index=False)
        (folder / "leaderboard.json").write_text(_json(board), encoding="utf-8")
        pages = _write_questions(board, folder) if with_samples else {}
        write_page(board, findings, pages, _write_report(results, board, folder / "report"), folder, baseline)
    return board


def _write_report(results: Path, board: Board, output: Path) -> dict[str, str]:
    """Writes the report on models with a plan (`mdlm-sweep --config paper`): id of a row -> its link to the report."""
    from mdlm_leaderboard.report.write import write_report_of
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
    from mdlm_leaderboard.samples import write_samples

    pages = {}
    for row in board.rows:
        for number, path in enumerate(row.files):
            place = f"questions/{row.id}-{number}"
            with suppress(UnusableFile):
                write_samples([board.scores.files[path].place], folder / place)
                pages[path] = f"{place}/index.html"
    return pages


def _of_benchmarks(board: Board, section: Section, folder: Path, colours: Mapping[str, str]) -> Iterable[Finding]:
    """The figures of each benchmark, accuracy against speed and by masks, with sentences about their numbers."""
    from mdlm_leaderboard.figures import save_light_and_dark
    from mdlm_lm_eval.results import plot

    setting, table = section.setting, board.scores.table
    table = table[(table["experiment"] == BENCHMARKS) & (table["setting"] == setting)]
    parts = (setting.group, "limited" if setting.limit is not None else "", setting.served_by)
    ours = re.sub(r"[^\w.]+", "-", "".join(f"-{part}" for part in parts if part))
    for n, (name, lines) in enumerate(table.groupby("x", sort=False)):
        own = pd.DataFrame([*lines["row"]])
        with warnings.catch_warnings(action="ignore", category=plot.NothingToDrawWarning):
            speed, by_masks = plot.frontier(own, colours=colours), plot.masks(own)
        said = " ".join(speed_findings(section, str(name)))
        title = f"{own['task'][0]} ({own['metric'][0].removesuffix(',none')})"
        drawn = ("frontier", speed, "Accuracy against speed.", said), ("by-masks", by_masks, "Accuracy by masks.", "")
        for kind, figure, words, sentence in drawn:
            if figure and n < _MOST_FIGURES:
                file = f"{kind}{ours}{f'-{n + 1}' if n else ''}"
                save_light_and_dark(figure, folder / file)
                yield Finding(section, title, sentence, f"figures/{file}", words, f"{title}: {words}")


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
