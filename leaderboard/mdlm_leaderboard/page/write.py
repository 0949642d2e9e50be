"""Renders `index.html` from a board."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mdlm_leaderboard.board import BOUND, INTERVALS, QUALITIES, Board, Row, Section, change, is_exact
from mdlm_leaderboard.experiments import BY_NAME
from mdlm_leaderboard.figures import Chart
from mdlm_leaderboard.scores import BENCHMARKS, COSTS, command_of
from mdlm_lm_eval.results.decomposition import Decomposition
from mdlm_lm_eval.results.in_words import check_in_words
from mdlm_lm_eval.results.result_file import ResultFile

_HEAT_ROWS = 20
_SHARES = {
    "decoded": "the right label, as decoded",
    "among_labels": "the right label, among the labels",
    "label": "any label",
    "eos": "EOS",
    "end_of_turn": "end of turn",
    "other": "another token",
}
_SERVER_FACTS = {"said": "settings the server says", "stated": "settings stated", "unknown": "settings unknown"}
_FACTS = ("preset", "processes", "device_name", "attn_implementation", "cache_audit", "batch_size", "torch")


def write_page(
    board: Board,
    findings: Sequence[tuple[str, str, str]],
    charts: Sequence[Chart],
    pages: Mapping[str, str],
    output: Path,
) -> Path:
    """Writes `index.html` into `output` beside its figures. `findings` are sentences, a figure's stem and its alt text.

    `pages` are those of the questions of result files.

    Style and script are in the page, whose content security policy names them by their hashes: text from a result file
    that looks like a script does not run.
    """
    rows = [row for section in board.sections for row in section.rows]
    tasks = sorted({task for row in rows for one in row.curve("masks").values() for task in one.by_task})
    return render(
        "page",
        output / "index.html",
        board=board,
        findings=findings,
        pages=pages,
        main=board.main,
        heat=_heat(board.main) if board.main else [],
        scale_of=_scale,
        cost_heads=COSTS,
        bound_words=BOUND,
        interval_words=INTERVALS,
        qualities=QUALITIES,
        figures=[(title, list(own)) for title, own in groupby(charts, key=lambda chart: chart.section)],
        tasks=tasks,
        choices={name: sorted({getattr(row.who, name) for row in rows}) for name in ("family", "source")},
        dates=sorted(file.date for file in board.scores.files.values() if file.date),
        tables_of=_tables_of,
        runs_of=lambda row: _runs_of([board.scores.files[path] for path in row.files]),
        parameters_of=lambda row: board.scores.files[row.files[0]].config.get("model_num_parameters"),
        by_masks=_by_masks,
        parts_of=_parts_of,
        share_words=_SHARES,
        is_exact=is_exact,
    )


def render(name: str, path: Path, **content: Any) -> Path:
    """Writes a page from the template, the style and the script of this folder that have this name."""
    loader = PackageLoader("mdlm_leaderboard", "page")
    quiet: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **quiet)
    style, script = (
        files("mdlm_leaderboard").joinpath("page", f"{name}{ending}").read_text("utf-8") for ending in (".css", ".js")
    )
    html = environment.get_template(f"{name}.html.jinja").render(
        style=Markup(style),  # ours, from this folder
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        **content,
    )
    path.write_text(html, encoding="utf-8")
    return path


def _scale(section: Section) -> tuple[float, float]:
    """Where the bars of a table begin and end: at the lowest and the highest end of an interval, in percent."""
    at = [one.interval for row in section.rows if (one := row.curve("masks").get(section.pair[1]))]
    return min((one.low or 0 for one in at), default=0), max((one.high or 100 for one in at), default=100)


def _tables_of(row: Row, pair: tuple[int, int]) -> list[dict[str, Any]]:
    """The numbers of a row's details: per experiment and series a line for the row, and one for each of its seeds."""
    tables = []
    for (name, series), curve in row.curves.items():
        if name == BENCHMARKS:
            continue
        experiment, xs = BY_NAME[name], list(curve)
        ends = pair if name == "masks" and {*pair} <= curve.keys() else (xs[0], xs[-1])
        title = experiment.title.replace("`", "") + (f", {experiment.series_words(series)}" if series != "" else "")
        curves = [("mean" if row.seeds else "", curve)]
        curves += [(seed.who.adapter.rpartition(", ")[2], seed.curve(name, series)) for seed in row.seeds]
        lines = [(who, [own.get(x) for x in xs], change(own, *ends)) for who, own in curves]
        tables.append({"title": title, "x_label": experiment.x_label, "xs": xs, "ends": ends, "lines": lines})
    return tables


def _parts_of(row: Row) -> dict[Any, Decomposition]:
    """Mask count -> what the first tokens are, where it was recorded."""
    return {n: one.decomposition for n, one in row.curve("masks").items() if one.decomposition}


def _by_masks(row: Row) -> str:
    """JSON of accuracies in percent, mask count -> mean, low, high and tasks by name; "" where there are none."""
    numbers = {
        n: [*_rounded(one.mean, one.low, one.high), _rounded(*(one.by_task[task] for task in sorted(one.by_task)))]
        for n, one in row.curve("masks").items()
    }
    return json.dumps(numbers, separators=(",", ":")) if numbers else ""


def _rounded(*shares: float | None) -> list[float | None]:
    return [None if share is None else round(100 * share, 2) for share in shares]


def _runs_of(found: Sequence[ResultFile]) -> dict[str, Any]:
    """What made a row: every command with its files, and the settings and versions that all of its files share."""
    commands: dict[str, list[ResultFile]] = {}
    for file in found:
        commands.setdefault(command_of(file), []).append(file)
    settings = [
        {name: (file.mdlm or {}).get(name) for name in _FACTS}
        | {words: _listed(file.server[name]) for name, words in _SERVER_FACTS.items() if file.server}
        | {"mdlm-check": check_in_words((file.mdlm or {}).get("check"))}
        | {"mdlm_lm_eval": (file.mdlm or {}).get("package_version"), "dtype": file.dtype}
        | {**file.versions}
        for file in found
    ]
    shared = {k: v for k, v in settings[0].items() if v not in (None, "") and all(one[k] == v for one in settings)}
    return {"commands": commands, "settings": shared}


def _listed(found: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(f"{name}={found[name]}" if isinstance(found, Mapping) else name for name in found)


def _heat(section: Section) -> list[tuple[Row, dict[str, float]]]:
    """Per row, the points that each task loses between the section's two mask counts; the first rows only."""
    few, most = section.pair
    curves = [(row, row.curve("masks")) for row in section.rows]
    return [
        (row, {task: 100 * (score - curve[most].by_task[task]) for task, score in sorted(curve[few].by_task.items())})
        for row, curve in curves
        if {few, most} <= curve.keys() and few != most
    ][:_HEAT_ROWS]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
