"""Result files of a model whose accuracy under each condition is planted: all cells of the paper's experiments."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.leaderboard_files import suite_file

#: Condition -> the shares of right answers and of answers that are the end of the text.
Planted = Callable[[dict[str, Any]], tuple[float, float]]
_SLIP = 0.05  # share of answers that are right or wrong by chance, whatever the condition


def cells() -> Iterator[dict[str, Any]]:
    """The arguments of `suite_file` for each cell, and the conditions `position`, `question` and `dots`."""
    places = (0, 10, 20, 30, 40)
    for question in ("left", "middle", "right"):
        for position in places:
            yield {"variant": f"_{question}_pos{position}", "question": question, "position": position}
    for n_masks in (1, 2, 5, 10, 20, 50, 100, 150, 200):
        yield {"n_masks": n_masks}
    for distractors in (0, 10, 20, 30):
        yield {"n_masks": 2, "distractors": distractors}
        yield {"mask_ratio": 0.2, "distractors": distractors}
    for dots in (0, 10, 50, 100, 150, 200):
        yield {"variant": "_slot", "n_fillers": dots, "filler": "."}
    for n_masks in (2, 10, 50, 100, 200):
        for unmasking in ("random", "confidence"):
            yield {"n_masks": n_masks, "steps": 40, "unmasking": unmasking}
    for position in places:
        for n_masks in (2, 50, 100, 200):
            yield {"variant": f"_pos{position}", "n_masks": n_masks, "position": position}


def write_run(
    folder: Path, planted: Planted, *, n: int = 200, seed: int = 0, only: set[str] = frozenset(), **of_file: Any
) -> None:
    """Writes a result file for each cell, with `n` questions a task, in the layout of a sweep.

    only: the names that a cell has to have and no others, by default any.
    """
    for number, cell in enumerate(cells()):
        if only and cell.keys() != only:
            continue
        given = {name: value for name, value in cell.items() if name not in ("question", "position")}
        content = suite_file(limit=n, **given, **of_file)
        tasks = content["config"]["mdlm"]["tasks"]
        for name in tasks:
            of_task = "_".join(name.split("_")[1:3])
            letters = _letters(of_task, planted(cell), n, seed, number)
            tasks[name] = {**tasks[name], "first_token": {"letters": letters, "entropy": 0.5}}
            content["results"][name]["exact_match,none"] = letters.count("R") / n
        path = folder / f"cell-{number}" / "results_cell.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")


def write_analysis(path: Path, name: str, rows: list[dict[str, Any]], **settings: Any) -> None:
    """Writes an analysis as a cell of a sweep, with these settings of the cell."""
    content = {"settings": {"pretrained": "organisation/model"}, "rows": rows, "summary": {"groups": []}}
    content["config"] = {"mdlm_sweep": {"settings": settings}}
    path.mkdir(parents=True)
    (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _letters(task: str, shares: tuple[float, float], n: int, seed: int, cell: int) -> str:
    """A sign for each question. Questions are as hard in all cells, so that answers are paired."""
    right, end = shares
    own = zlib.crc32(task.encode())
    difficulty = np.random.default_rng((seed, own)).random(n)
    noise = np.random.default_rng((seed, own, cell)).random((3, n))
    is_right = np.where(noise[0] < _SLIP, noise[1] < right, difficulty < right)
    is_end = ~is_right & (noise[2] < end / max(1 - right, end, 1e-9))
    return "".join("R" if one else "E" if ends else "W" for one, ends in zip(is_right, is_end, strict=True))
