"""Figure and table of a model's results on `mdlm_parallel`: accuracy against the tokens that a step fills.

    python benchmarks/generated_tasks.py leaderboard/generated_tasks/built-in-lists --output docs/figures

Hollow markers are bounds: what an ideal model reaches that draws 2 or 4 names per step,
independently of each other. They count names, the axis counts tokens, a third of which are names.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_lm_eval.results.figure_style import COLOURS, COLUMN_WIDTH, MARKERS, figure_style, save_figure
from mdlm_lm_eval.results.result_file import find_result_files, read_result_file

#: Panel -> operations, a line each.
PANELS = {
    "one right answer": ("copy", "reverse", "sort", "insert_index", "remove_index", "replace_index"),
    "several right answers": ("shuffle", "insert_anywhere", "remove_any", "replace_any"),
}
Scores = dict[int, dict[str, Mapping[str, float]]]  # tokens per step -> task -> metrics


def scores_of(folder: Path) -> Scores:
    """The results below a folder, of sweeps in blocks of `block_length` tokens with so many steps each."""
    found: Scores = {}
    for path in find_result_files(folder):
        for name, task in read_result_file(path).tasks.items():
            k = int(task.options["block_length"]) // int(task.options["steps_per_block"])
            found.setdefault(k, {})[name] = task.metrics
    return dict(sorted(found.items()))


def lines_of(scores: Scores, operation: str) -> tuple[dict[int, float], list[float]]:
    """Accuracy by tokens per step, and the bounds at 2 and 4 names per step where they are below 100, in percent."""
    task = f"mdlm_parallel_{operation}"
    shown = {k: 100 * one[task]["exact_match,none"] for k, one in scores.items()}
    metrics = next(iter(scores.values()))[task]
    bounds = [100 * metrics.get(f"bound_{k},none", 1.0) for k in (2, 4)]
    return shown, bounds if min(bounds) < 100 else []


def table(scores: Scores) -> list[str]:
    """Rows in Markdown: what is asked, accuracy at each number of tokens per step, and bounds."""
    rows = []
    for operation in (one for operations in PANELS.values() for one in operations):
        shown, bounds = lines_of(scores, operation)
        cells = [f"{value:.1f}" for value in (*shown.values(), *bounds)]
        rows.append(" | ".join([f"| {operation.replace('_', ' ')}", *cells]) + " |")
    return rows


@figure_style()
def draw(scores: Scores) -> Figure:
    """A panel beside the other, a line for each operation."""
    figure = Figure(figsize=(COLUMN_WIDTH * (0.2 + 0.7 * len(PANELS)), 2.8), layout="constrained")
    grid = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (title, operations) in zip(grid, PANELS.items(), strict=True):
        for operation, colour, marker in zip(operations, COLOURS, MARKERS, strict=False):
            shown, bounds = lines_of(scores, operation)
            label = operation.replace("_", " ")
            axes.plot(list(shown), list(shown.values()), color=colour, marker=marker, label=label)
            if bounds:
                axes.plot((2, 4), bounds, color=colour, marker=marker, markerfacecolor="none", linestyle=":")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(scores)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(-3, 103)
        axes.set_title(title)
        axes.set_xlabel("tokens per step")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=6)
    grid[0].set_ylabel("accuracy (%)")
    return figure


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="folder for the figure")
    given = parser.parse_args()
    scores = scores_of(given.results)
    save_figure(draw(scores), given.output / "tasks-parallel")
    print("\n".join(table(scores)))


if __name__ == "__main__":
    main()
