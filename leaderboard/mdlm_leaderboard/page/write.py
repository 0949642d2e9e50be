"""Renders `index.html` from a board."""

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mdlm_leaderboard.figures import Figure, figures_of
from mdlm_leaderboard.page.columns import ColumnGroup, column_groups, curve_tables
from mdlm_leaderboard.page.provenance import provenance_of
from mdlm_leaderboard.rows import Board, LeaderboardRow


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
    sections = [(section, column_groups(section.rows)) for section in board.sections]
    groups = _by_name(group for _, of_section in sections for group in of_section if group.head)
    style += "".join(f".off-{name} .g-{name} {{ display: none; }}\n" for name in groups)
    html = environment.get_template("page.html.jinja").render(
        board=board,
        sections=sections,
        figures=[(shown[0].section, shown) for shown in _by_folder(figures_of(board))],
        filters=_filters(board.rows),
        groups=groups,
        newest=max((run.date for row in board.rows for run in row.runs), default=""),
        curve_tables=curve_tables,
        provenance_of=provenance_of,
        style=Markup(style),  # ours, from this folder
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    path = output / "index.html"
    path.write_text(html, encoding="utf-8")
    return path


def _by_folder(figures: Iterable[Figure]) -> list[list[Figure]]:
    """Figures of one section lie in one folder."""
    return [list(shown) for _, shown in groupby(figures, key=lambda figure: figure.stem.rpartition("/")[0])]


def _filters(rows: Iterable[LeaderboardRow]) -> dict[str, list[str]]:
    """What readers may choose from; a filter of one choice would choose nothing."""
    rows = list(rows)
    choices: dict[str, list[str]] = {
        "family": sorted({row.family for row in rows}),
        "origin": sorted({row.origin for row in rows}),
        "adapter": sorted({"with" if row.adapter else "without" for row in rows}),
        "steps": sorted({row.steps for row in rows}, key=lambda steps: (len(steps), steps)),
        "unmasking": sorted({row.unmasking for row in rows}),
    }
    named = {name: [value for value in values if value] for name, values in choices.items()}
    return {name: values for name, values in named.items() if len(values) > 1}


def _by_name(groups: Iterable[ColumnGroup]) -> dict[str, ColumnGroup]:
    return {group.name: group for group in groups}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
