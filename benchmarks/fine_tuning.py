"""Makes the tables of finetune/README.md from what these commands leave in a folder:

    for seed in 0 1 2; do for loss in ce-tv ce; do
        mdlm-finetune --config built-in-$loss --seed $seed --output_dir out/built-in-$loss-seed$seed \\
            --evaluation_limit 0
    done; done
    adapters=none$(printf ',out/built-in-%s' ce{-tv,}-seed{0,1,2})
    mdlm-sweep --config e09 --limit 100 --peft $adapters --output_path RESULTS
    mdlm-sweep --config e10 --n_masks 2,200 --limit 20 --peft $adapters --output_path RESULTS
    mdlm-sweep --config e11 --n_masks 2,200 --limit 10 --peft $adapters --output_path RESULTS
    mdlm-sweep --config e11 --n_masks 200 --steps 40 --unmasking confidence --limit 5 --peft $adapters \\
        --output_path RESULTS
    python benchmarks/fine_tuning.py RESULTS --readme finetune/README.md
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from mdlm_lm_eval.results.markdown import markdown_table as table
from mdlm_lm_eval.results.markdown import replace_table
from mdlm_lm_eval.results.result_file import read_result_file

N_MASKS = (1, 2, 10, 50, 100, 200)
POSITIONS = (0, 10, 20, 30, 40)
# Label -> what the card of an adapter of it calls it, before its seed; the base model has no adapter.
MODELS = {"before": "", "CE + TV": "MA (CE + TV), ", "CE only": "MA (CE only), "}
# Rules whose questions the fine-tuning data holds back (HELD_OUT_RULES in finetune/mdlm_finetune/generated.py).
HELD_OUT = ("mdlm_animal", "mdlm_emotion")


@dataclass(frozen=True)
class Cell:
    """One result file. `accuracies` maps tasks to 0..1."""

    adapter: str
    group: str
    n_masks: int
    steps: int
    unmasking: str
    n_questions: int
    accuracies: dict[str, float]


def read(path: Path) -> Cell:
    result = read_result_file(path)
    settings = result.mdlm or {}
    ((group, tasks),) = ((name, members) for name, members in result.groups.items() if name in result.group_results)
    return Cell(
        adapter=settings["adapter"] or "",
        group=group,
        n_masks=settings["decoding"]["n_masks"],
        steps=settings["decoding"]["steps"],
        unmasking=settings["decoding"]["unmasking"],
        n_questions=sum(result.tasks[task].n_questions for task in tasks),
        accuracies={task: result.tasks[task].metrics["exact_match,none"] for task in tasks},
    )


def of_model(cells: Iterable[Cell], label: str) -> list[list[Cell]]:
    """The cells of every seed of a model."""
    prefix = MODELS[label]
    seeds: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.adapter.startswith(prefix) if prefix else cell.adapter == "":
            seeds.setdefault(cell.adapter, []).append(cell)
    return list(seeds.values())


def accuracy(cells: Iterable[Cell], task_filter: Callable[[str], bool] = lambda task: True) -> float:
    """Mean over the tasks of one cell, in percent. Raises ValueError where not exactly one cell is given."""
    (cell,) = cells
    return 100 * mean(value for task, value in cell.accuracies.items() if task_filter(task))


def over_seeds(values: list[float]) -> str:
    """Mean, and where there are several the standard deviation."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def mask_table(cells: list[Cell]) -> str:
    """E9: accuracy at each mask count in one step; best, drop and degradation of each seed, then over seeds."""
    rows = []
    chosen = [cell for cell in cells if cell.group == "mdlm_context" and cell.steps == 1]
    for label in MODELS:
        curves = [
            [accuracy(cell for cell in seed if cell.n_masks == n) for n in N_MASKS] for seed in of_model(chosen, label)
        ]
        drops = [max(curve) - min(curve) for curve in curves]
        degradations = [100 * (max(curve) - min(curve)) / max(curve) for curve in curves]
        columns = [*map(list, zip(*curves, strict=True)), [max(curve) for curve in curves], drops, degradations]
        rows.append([label, *map(over_seeds, columns)])
    return table(["n_masks", *map(str, N_MASKS), "best", "drop, points", "degradation, %"], rows)


def rule_table(cells: list[Cell]) -> str:
    """Tasks whose rule the fine-tuning data asks about, and those that it holds back."""
    rows = []
    chosen = [cell for cell in cells if cell.group == "mdlm_context" and cell.steps == 1]
    for label in MODELS:
        row = [label]
        for held_out in (False, True):
            for n in (2, 200):
                row.append(
                    over_seeds(
                        [
                            accuracy(
                                (cell for cell in seed if cell.n_masks == n),
                                lambda task, wanted=held_out: task.startswith(HELD_OUT) == wanted,
                            )
                            for seed in of_model(chosen, label)
                        ]
                    )
                )
        rows.append(row)
    names = [f"{rules} rules, n = {n}" for rules in ("12 trained", "4 held-out") for n in (2, 200)]
    return table(["tasks", *names], rows)


def position_table(cells: list[Cell]) -> str:
    """E10: accuracy against the block's position."""
    rows = []
    for n in (2, 200):
        for label in MODELS:
            of_positions = [cell for cell in cells if cell.group.startswith("mdlm_position") and cell.n_masks == n]
            seeds = of_model(of_positions, label)
            curves = [
                [accuracy(cell for cell in seed if cell.group == f"mdlm_position_pos{p}") for p in POSITIONS]
                for seed in seeds
            ]
            columns = [*map(list, zip(*curves, strict=True)), [max(curve) - min(curve) for curve in curves]]
            rows.append([f"{label}, n = {n}", *map(over_seeds, columns)])
    return table(["block after ... distractors", *map(str, POSITIONS), "gap"], rows)


def step_table(cells: list[Cell]) -> str:
    """E11: accuracy in several denoising steps."""
    # Two masks take two steps at most.
    ways = [(2, 2, "random"), *((200, steps, "random") for steps in (2, 4, 6)), (200, 40, "confidence")]
    chosen = [cell for cell in cells if cell.group == "mdlm_context" and cell.steps > 1]
    rows = []
    for label in MODELS:
        row = [label]
        for n, steps, unmasking in ways:
            values = [
                accuracy(c for c in seed if (c.n_masks, c.steps, c.unmasking) == (n, steps, unmasking))
                for seed in of_model(chosen, label)
            ]
            row.append(over_seeds(values))
        rows.append(row)
    return table(["n_masks, steps, order", *(f"{n}, {steps}, {order}" for n, steps, order in ways)], rows)


TABLES = {"masks": mask_table, "rules": rule_table, "positions": position_table, "steps": step_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what the sweeps wrote")
    parser.add_argument("--readme", type=Path, help="file whose marked tables are replaced")
    arguments = parser.parse_args()
    cells = [read(path) for path in sorted(arguments.results.rglob("results_*.json"))]
    for name, make in TABLES.items():
        text = make(cells)
        print(f"\n{name}\n{text}")
        if arguments.readme:
            replace_table(arguments.readme, name, text)


if __name__ == "__main__":
    main()
