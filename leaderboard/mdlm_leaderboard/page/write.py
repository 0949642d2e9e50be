"""Renders `index.html` from a board."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mdlm_leaderboard.board import Board, Curve, Estimate, Row, Section, change, is_exact
from mdlm_leaderboard.experiments import BY_NAME, NO_MASKS
from mdlm_leaderboard.figures import Figure
from mdlm_leaderboard.scores import BENCHMARKS, command_of
from mdlm_lm_eval.results.result_file import ResultFile
from mdlm_lm_eval.results.suite import cluster_of

_SPARK = (72, 20)  # pixels of a sparkline
_BAR = (64, 12)
_HEAT_ROWS, _POINTS_PER_SHADE, _SHADES = 20, 5, 8
_FACTS = ("preset", "processes", "device_name", "attn_implementation", "cache_audit", "batch_size")


def write_page(board: Board, findings: Sequence[tuple[str, str, str]], figures: Sequence[Figure], output: Path) -> Path:
    """Writes `index.html` into `output` beside its figures. `findings` are sentences, a figure's stem and its alt text.

    Style and script are in the page, whose content security policy names them by their hashes: text from a result file
    that looks like a script does not run.
    """
    environment = Environment(
        loader=PackageLoader("mdlm_leaderboard", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (
        files("mdlm_leaderboard").joinpath("page", name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    rows = [row for section in board.sections for row in section.rows]
    main = board.main
    tasks = sorted(
        {task for row in rows for curve in [row.curve("masks")] for one in curve.values() for task in one.by_task}
    )
    html = environment.get_template("page.html.jinja").render(
        board=board,
        findings=findings,
        sections=[_shown(section, n == 0) for n, section in enumerate(board.sections)],
        heat=_heat(main) if main else [],
        main=main,
        figures=[(title, list(own)) for title, own in groupby(figures, key=lambda figure: figure.section)],
        tasks=tasks,
        clusters=[cluster_of(task) for task in tasks],
        choices={
            "family": sorted({row.who.family for row in rows}),
            "source": sorted({row.who.source for row in rows}),
        },
        dates=sorted(file.date for file in board.scores.files.values() if file.date),
        tables_of=_tables_of,
        runs_of=lambda row: _runs_of([board.scores.files[path] for path in row.files]),
        parameters_of=lambda row: board.scores.files[row.files[0]].parameters,
        by_masks=_by_masks,
        url_of=_url_of,
        spark=_spark,
        bar=_bar,
        is_exact=is_exact,
        style=Markup(style),  # ours, from this folder
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    path = output / "index.html"
    path.write_text(html, encoding="utf-8")
    return path


def _shown(section: Section, is_first: bool) -> dict[str, Any]:
    most = section.pair[1]
    points = sorted({n for row in section.rows for n in row.curve("masks")})
    at = [one.interval for row in section.rows if (one := row.curve("masks").get(most))]
    lows, highs = ([end for one in at if (end := getattr(one, name)) is not None] for name in ("low", "high"))
    return {
        "section": section,
        "is_apart": bool(section.why_apart) and not is_first,
        "points": points,
        "has_spark": len(points) > 1,
        "scale": (min(lows, default=0), max(highs, default=100)),
        "costs": [name for name in _COST_HEADS if any(row.cost(name) is not None for row in section.rows)],
        "cost_heads": _COST_HEADS,
    }


_COST_HEADS = {"tokens_per_pass": "tokens per pass", "seconds": "seconds per question", "memory_gib": "memory (GiB)"}


def _spark(curve: Curve) -> Markup:
    """Accuracy over the mask counts, at equal distances, as a picture of a line."""
    points = [(n, one.mean) for n, one in curve.items() if n != NO_MASKS]
    if len(points) < 2:
        return Markup("–")
    (width, height), low, high = _SPARK, min(y for _, y in points), max(y for _, y in points)
    span = max(high - low, 0.15)  # a curve within noise looks flat
    middle = (high + low) / 2
    at = [
        (2 + (width - 4) * k / (len(points) - 1), height / 2 - (height - 4) * (y - middle) / span)
        for k, (_, y) in enumerate(points)
    ]
    said = ", ".join(f"{100 * y:.1f} at {n}" for n, y in points)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return Markup(
        f'<svg class="spark" width="{width}" height="{height}" role="img" aria-label="accuracy by masks: {said}">'
        f'<polyline points="{line}"/><circle cx="{at[-1][0]:.1f}" cy="{at[-1][1]:.1f}" r="2"/></svg>'
    )


def _bar(estimate: Estimate | None, scale: tuple[float, float]) -> Markup:
    """The 95% interval as a bar on the scale of its table, its mean as a dot."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return Markup("")
    (width, height), (low, high) = _BAR, scale
    left, mean, right = (
        2 + (width - 4) * (100 * end - low) / ((high - low) or 1)
        for end in (estimate.low, estimate.mean, estimate.high)
    )
    return Markup(
        f'<svg class="bar" width="{width}" height="{height}" aria-hidden="true"><line x1="{left:.1f}" x2="{right:.1f}" '
        f'y1="6" y2="6"/><circle cx="{mean:.1f}" cy="6" r="2.5"/></svg>'
    )


def _tables_of(row: Row, pair: tuple[int, int]) -> list[dict[str, Any]]:
    """The numbers of a row's details: per experiment and series a line for the row, and one for each of its seeds."""
    tables = []
    for (name, series), curve in row.curves.items():
        if name == BENCHMARKS:
            continue
        experiment, xs = BY_NAME[name], list(curve)
        ends = pair if name == "masks" and {*pair} <= curve.keys() else (xs[0], xs[-1])
        title = experiment.title.replace("`", "") + (f", {experiment.series_words(series)}" if series != "" else "")
        whole = [
            ("mean" if row.seeds else "", row),
            *((seed.who.adapter.rpartition(", ")[2], seed) for seed in row.seeds),
        ]
        lines = [
            (who, [one.curve(name, series).get(x) for x in xs], change(one.curve(name, series), *ends))
            for who, one in whole
        ]
        tables.append({"title": title, "x_label": experiment.x_label, "xs": xs, "ends": ends, "lines": lines})
    return tables


def _by_masks(row: Row) -> str:
    """JSON of accuracies in percent by mask count and, in the order of their names, task; "" where there are none."""
    curve = row.curve("masks")
    numbers = {n: [round(100 * one.by_task[task], 2) for task in sorted(one.by_task)] for n, one in curve.items()}
    return json.dumps(numbers, separators=(",", ":")) if numbers else ""


def _runs_of(found: Sequence[ResultFile]) -> dict[str, Any]:
    """What made a row: every command with its files, and the settings and versions that all of its files share."""
    commands: dict[str, list[ResultFile]] = {}
    for file in found:
        commands.setdefault(command_of(file), []).append(file)
    settings = [{name: (file.mdlm or {}).get(name) for name in _FACTS} | {"dtype": file.dtype} for file in found]
    return {"commands": commands, "settings": _shared(settings), "versions": _shared([file.versions for file in found])}


def _shared(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = mappings[0]
    return {k: v for k, v in first.items() if v not in (None, "") and all(other.get(k) == v for other in mappings)}


def _heat(section: Section) -> list[tuple[Row, list[tuple[str, str, int]]]]:
    """Per row and task, the points lost between the section's two mask counts, and a shade; the first rows only."""
    few, most = section.pair
    lines = []
    for row in section.rows:
        curve = row.curve("masks")
        if {few, most} <= curve.keys() and few != most:
            lost = {
                task: 100 * (score - curve[most].by_task[task]) for task, score in sorted(curve[few].by_task.items())
            }
            cells = [
                (
                    task,
                    f"{round(points, 1) + 0.0:.1f}".replace("-", "−"),
                    min(max(round(points / _POINTS_PER_SHADE), 0), _SHADES),
                )
                for task, points in lost.items()
            ]
            lines.append((row, cells))
    return lines[:_HEAT_ROWS]


def _url_of(model: str) -> str:
    """Where the weights of a hub id are, "" for any other name."""
    return f"https://huggingface.co/{model}" if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model, re.ASCII) else ""


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
