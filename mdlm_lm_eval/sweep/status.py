"""The output of a sweep: which cells are done and missing, and the table of scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.frame import COSTS, ONE_BLOCK, benchmarks, frame_of, shown_costs
from mdlm_lm_eval.results.markdown import aligned, markdown_table
from mdlm_lm_eval.results.names import named
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.statistics import Score, against, pairing
from mdlm_lm_eval.sweep.claims import Claims
from mdlm_lm_eval.sweep.plan import RESULT_FILE, Cell


def status(claims: Claims) -> str:
    """The number of cells that are done, missing, or of other settings, and a line for each that is not done."""
    found: dict[str, list[str]] = {"done": [], "missing": [], "of other settings": []}
    for cell in claims.sweep.cells:
        try:
            state = "done" if claims.is_finished(cell) else "missing"
        except OptionError:
            state = "of other settings"
        found[state].append(cell.name)
    counts = ", ".join(f"{len(names)} {state}" for state, names in found.items())
    undone = [f"{state}: {name}" for state, names in found.items() if state != "done" for name in names]
    return "\n".join([f"{len(claims.sweep.cells)} cells: {counts}", *undone])


def table(cells: Sequence[Cell], output: Path, baseline: str = "") -> str:
    """A table with a row for each cell: metrics with 95% intervals or differences to a baseline, and costs.

    The baseline of a task is its first cell, or the cell with the words of `baseline`. A cell with several tasks, such
    as a tag, has a row for each. Guests are marked, and cells with blocks that hold all masks.
    """
    files = ((output / cell.name / RESULT_FILE, cell.name) for cell in cells)
    frame = frame_of(read_result_file(path, name) for path, name in files)
    if frame.empty:
        return "no cell is done"
    top = benchmarks(frame)
    beside: dict[Any, str] = {}
    bases: dict[str, list[Score]] = {}  # name of a baseline -> the scores that are compared, its own first
    for _, of_task in top.groupby("task", sort=False):
        base = (named(baseline, of_task["file"]) if baseline else None) or of_task["file"].iloc[0]
        own = of_task[of_task["file"] == base]
        shares = dict(zip(own["metric"], own["share"], strict=True))
        for row in of_task.itertuples():
            if row.file != base and row.share and (first := shares.get(row.metric)):
                beside[row.Index] = f"{row.score:.1f}, {against(first, row.share)}"
                bases.setdefault(base, [first]).append(row.share)
    top["words"] = pd.Series(beside, dtype=object).reindex(top.index).fillna(top["in_words"])
    label = top["file"] + (": " + top["task"]).where(top.groupby("file")["task"].transform("nunique") > 1, "")
    for name, words in {"is_guest": "guest", "is_one_block": ONE_BLOCK}.items():
        label = label + top[name].map({True: f" ({words})", False: ""})
    top["cell"] = label
    first = top.drop_duplicates("cell").set_index("cell")
    metrics, costs = top["metric"].unique(), shown_costs(first)
    words = top.pivot(index="cell", columns="metric", values="words").loc[first.index, metrics].fillna("")
    columns = [first.index, *(words[name] for name in metrics)]
    columns += [first["n"].astype(str), *(aligned(first[name]) for name in costs)]
    heads = ["cell", *(name.removesuffix(",none") for name in metrics), "questions", *(COSTS[name] for name in costs)]
    lines = markdown_table(heads, zip(*columns, strict=True))
    if not bases:
        return lines
    pairs = pairing(one for own in bases.values() for one in own)
    return f"{lines}\n\nDifferences in points are to {', '.join(bases)}, {pairs}."
