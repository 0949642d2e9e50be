"""Measures the built-in model on the suite and writes the tables of docs/built_in_model.md.

    python benchmarks/built_in_model.py --limit 50 --slow_limit 5 --readme docs/built_in_model.md

Every cell is an ordinary run of lm-eval over one loaded model; its result goes to `--output` as JSON, and a cell that
lies there already is not run again.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.results.files import write_whole
from mdlm_lm_eval.results.markdown import markdown_table, replace_table
from mdlm_lm_eval.results.statistics import Interval, t_interval

N_MASKS = (1, 2, 10, 50, 100, 200)
POSITIONS = (0, 10, 20, 30, 40)
DOTS = (0, 50, 100, 200)
TABLES = ("masks", "positions", "dots")
UNMASKING: dict[str, dict[str, Any]] = {
    "one step": {"steps": 1},
    "40 steps, by confidence": {"steps": 40, "unmasking": "confidence"},
    "40 steps, random": {"steps": 40, "unmasking": "random"},
}


class Cells:
    """Accuracies of the built-in model, measured once each and kept in a folder."""

    def __init__(self, model: str | None, output: Path, batch_size: int) -> None:
        arguments: dict[str, Any] = {"batch_size": batch_size, "device": "cpu"}
        self.lm = MDLM(**({"pretrained": model} if model else {}), **arguments)
        self.tasks = TaskManager(include_path=str(tasks_path()))
        self.output = output

    def accuracy(self, name: str, pattern: str, limit: int, gen_kwargs: dict[str, Any]) -> Interval:
        """Mean accuracy over the matching tasks with its 95% interval over tasks."""
        path = self.output / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-limit{limit}.json"
        if not path.exists():
            names = [task for task in self.tasks.match_tasks([pattern]) if task in set(self.tasks.all_subtasks)]
            results = simple_evaluate(
                self.lm, tasks=names, limit=limit, gen_kwargs=gen_kwargs, task_manager=self.tasks, log_samples=False
            )
            scores = {task: results["results"][task]["exact_match,none"] for task in names}
            write_whole(path, json.dumps({"gen_kwargs": gen_kwargs, "limit": limit, "accuracy": scores}, indent=1))
        return t_interval(list(json.loads(path.read_text())["accuracy"].values())).scaled(100)


def percent(accuracy: Interval) -> str:
    return f"{accuracy.mean:.1f} ± {accuracy.half_width:.1f}"


def mask_table(cells: Cells, limit: int, slow_limit: int) -> str:
    """E4 and E7: accuracy against the number of masks, per unmasking."""
    rows = []
    for label, options in UNMASKING.items():
        n_questions = limit if options["steps"] == 1 else slow_limit
        row = [
            percent(cells.accuracy(f"masks {label} {n}", "mdlm_*est", n_questions, {"n_masks": n, **options}))
            for n in N_MASKS
        ]
        rows.append([f"{label} ({16 * n_questions} questions)", *row])
    return markdown_table(["n_masks", *map(str, N_MASKS)], rows)


def position_table(cells: Cells, limit: int) -> str:
    """E2: accuracy against the place of the relevant block, per place of the question."""
    rows = []
    for place in ("left", "middle", "right"):
        row = [
            percent(cells.accuracy(f"position {place} {p}", f"mdlm_*_{place}_pos{p}", limit, {"steps": 1}))
            for p in POSITIONS
        ]
        rows.append([f"question {place}", *row])
    return markdown_table(["block after ... distractors", *map(str, POSITIONS)], rows)


def dots_table(cells: Cells, limit: int) -> str:
    """E6: accuracy against the number of dots after the slot."""
    row = [percent(cells.accuracy(f"dots {n}", "mdlm_*est_slot", limit, {"steps": 1, "n_fillers": n})) for n in DOTS]
    return markdown_table(["dots", *map(str, DOTS)], [["accuracy", *row]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="another model than the built-in one")
    parser.add_argument("--limit", type=int, default=50, help="questions a task in one-step cells")
    parser.add_argument("--slow_limit", type=int, default=5, help="questions a task in 40-step cells")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="which tables; all by default")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path("out/built_in_model"))
    parser.add_argument("--readme", type=Path, help="file whose marked tables are replaced")
    arguments = parser.parse_args()
    cells = Cells(arguments.pretrained, arguments.output, arguments.batch_size)
    measure = {
        "masks": lambda: mask_table(cells, arguments.limit, arguments.slow_limit),
        "positions": lambda: position_table(cells, arguments.limit),
        "dots": lambda: dots_table(cells, arguments.limit),
    }
    for name in arguments.tables:
        text = measure[name]()
        print(f"\n{name}\n{text}")
        if arguments.readme:
            replace_table(arguments.readme, name, text)


if __name__ == "__main__":
    main()
