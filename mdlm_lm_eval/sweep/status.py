"""What a sweep says: which cells are done and missing, and the table of what was measured."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.frame import benchmarks, frame_of
from mdlm_lm_eval.results.markdown import markdown_table
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.sweep.claims import RESULT_FILE, Claims
from mdlm_lm_eval.sweep.plan import Cell

_COSTS = {"tokens_per_pass": ".2f", "seconds": ".3g"}
_LAST = ["questions", "tokens per pass", "seconds per question"]
_BESIDE_GUESTS = {"positions": ".0f", "memory_gib": ".3g"}  # where functions of others are compared


def status(claims: Claims) -> str:
    """How many cells are done, missing, and of other settings; a line for each that is not done."""
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


def table(cells: Sequence[Cell], output: Path) -> str:
    """A row for each cell: every metric with its 95% interval, tokens for each forward pass, seconds for each question.

    A cell of several tasks, as of a tag, has a row for each. Beside guests, which are marked, costs are told in full.
    """
    files = ((output / cell.name / RESULT_FILE, cell.name) for cell in cells)
    frame = frame_of(read_result_file(path, name) for path, name in files)
    if frame.empty:
        return markdown_table(["cell", *_LAST], [])
    top = benchmarks(frame)
    metrics = list(dict.fromkeys(top["metric"]))
    is_guest = top["setting"].str.contains("(guest, ", regex=False)
    costs = _COSTS | (_BESIDE_GUESTS if is_guest.any() else {})
    last = [*_LAST, *(("positions per question", "GiB") if is_guest.any() else ())]
    rows = []
    for file, of_file in top.groupby("file", sort=False):
        for task, of_task in of_file.groupby("task", sort=False):
            scores = dict(zip(of_task["metric"], of_task["in_words"], strict=True))
            label = file if of_file["task"].nunique() == 1 else f"{file}: {task}"
            first = of_task.iloc[0]
            label += " (guest)" if is_guest[first.name] else ""
            numbers = ["" if pd.isna(first[name]) else f"{first[name]:{digits}}" for name, digits in costs.items()]
            rows.append([label, *(scores.get(name, "") for name in metrics), str(first["n"]), *numbers])
    return markdown_table(["cell", *(name.removesuffix(",none") for name in metrics), *last], rows)
