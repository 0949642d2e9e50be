"""Renders `index.html` from a board."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mdlm_leaderboard.figures import Figure, figures_of
from mdlm_leaderboard.headline import headline_of
from mdlm_leaderboard.page.columns import Column, ColumnGroup, column_groups, overview
from mdlm_leaderboard.page.curve_tables import curve_tables
from mdlm_leaderboard.page.per_task import compared_numbers, heat_map, task_names_of
from mdlm_leaderboard.page.provenance import provenance_of
from mdlm_leaderboard.ranking import Counts, ranked, ranked_by, shared_counts
from mdlm_leaderboard.rows import Board, LeaderboardRow, Section
from mdlm_leaderboard.seeds import seeds_of
from mdlm_lm_eval.results.statistics import t_quantile


@dataclass(frozen=True)
class ShownSection:
    """A section as it stands on the page. Those behind the switch are `is_apart`; `sources` are those of its rows.

    `counts` are the mask counts that its rows share, `ranked_by` says what orders them, "" where nothing does; `unused`
    are the columns of the overview in which none of its rows has a value.
    """

    section: Section
    rows: Sequence[LeaderboardRow]
    overview: ColumnGroup
    groups: Sequence[ColumnGroup]
    is_published: bool
    is_apart: bool
    sources: tuple[str, ...]
    ranks: Mapping[str, int]
    counts: Counts
    ranked_by: str
    unused: Sequence[Column]

    def rank(self, row: LeaderboardRow) -> int | None:
        """From 1; None where nothing measured ranks the row."""
        return self.ranks.get(row.id)


def write_page(board: Board, output: Path) -> Path:
    """Writes `index.html` into `output`, beside the figures that it shows, and returns its path.

    Style and script stand in the page. Its content security policy names them by their hashes: whatever else might
    come to look like a script out of a result file would not run.
    """
    environment = Environment(
        loader=PackageLoader("mdlm_leaderboard.page", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    sections = [_shown(section, board, is_first=n == 0) for n, section in enumerate(board.sections)]
    groups = {group.name: group for shown in sections for group in shown.groups}
    style += "".join(f"body:not(.on-{name}) .g-{name} {{ display: none; }}\n" for name in groups)
    tasks = task_names_of(board.rows)
    html = environment.get_template("page.html.jinja").render(
        board=board,
        headline=headline_of(board),
        sections=sections,
        hidden=_hidden(sections),
        heat_map=heat_map(sections[0].rows),
        tasks=tasks,
        t_quantile=t_quantile(len(tasks)) if len(tasks) > 1 else 0.0,
        figures=[(shown[0].section, shown) for shown in _by_folder(figures_of(board))],
        filters=_filters(board.rows),
        groups=groups,
        newest=max((run.date for row in board.rows for run in row.runs), default=""),
        compared_numbers=compared_numbers,
        curve_tables=curve_tables,
        provenance_of=provenance_of,
        seeds_of=seeds_of,
        weights_url=weights_url,
        decoding_of=decoding_of,
        style=Markup(style),  # ours, from this folder
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    path = output / "index.html"
    path.write_text(html, encoding="utf-8")
    return path


def weights_url(model: str) -> str:
    """Where the weights of a hub id lie, "" for any other name."""
    return f"https://huggingface.co/{model}" if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model, re.ASCII) else ""


def decoding_of(row: LeaderboardRow) -> str:
    """How a row was decoded, and every other setting that tells it from others, in words."""
    steps = row.steps + (f" step{'' if row.steps == '1' else 's'}" if row.steps[:1].isdecimal() else "")
    unmasking = "" if row.unmasking == "none" else row.unmasking
    return ", ".join(filter(None, [steps, unmasking, row.other]))


def _shown(section: Section, board: Board, *, is_first: bool) -> ShownSection:
    is_published = all(row.origin == "published" for row in section.rows)
    rows = section.rows if is_published else ranked(section.rows)
    counts = shared_counts(rows)
    columns = overview(board.rows, counts)
    ranks = {row.id: n for n, row in enumerate(rows, start=1) if row.curve("masks")}
    return ShownSection(
        section,
        rows,
        columns,
        column_groups(rows),
        is_published,
        is_apart=bool(section.why_apart) and not is_first and not is_published,
        sources=tuple(dict.fromkeys(row.citation for row in section.rows if row.citation)),
        ranks=ranks,
        counts=counts,
        ranked_by=ranked_by(counts) if ranks else "",
        unused=[column for column in columns.columns if all(column.cell(row).text == "–" for row in rows)],
    )


def _hidden(sections: Iterable[ShownSection]) -> str:
    """What the rows behind the switch are of, "" where there are none."""
    apart = [shown.section.rows[0].setting for shown in sections if shown.is_apart]
    kinds = {"part of the questions": [one for one in apart if one.limit is not None]}
    kinds["other suite versions or settings"] = [one for one in apart if one.limit is None]
    return ", ".join(kind for kind, settings in kinds.items() if settings)


def _by_folder(figures: Iterable[Figure]) -> list[list[Figure]]:
    """Figures of one section lie in one folder."""
    return [list(shown) for _, shown in groupby(figures, key=lambda figure: figure.stem.rpartition("/")[0])]


def _filters(rows: Iterable[LeaderboardRow]) -> dict[str, list[str]]:
    """What readers may choose from; a filter of one choice would choose nothing."""
    rows = list(rows)
    choices: dict[str, list[str]] = {
        "family": sorted({row.family for row in rows}),
        "adapter": sorted({"with" if row.adapter else "without" for row in rows}),
        "steps": sorted({row.steps for row in rows}, key=lambda steps: (len(steps), steps)),
        "unmasking": sorted({row.unmasking for row in rows}),
    }
    named = {name: [value for value in values if value] for name, values in choices.items()}
    return {name: values for name, values in named.items() if len(values) > 1}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
