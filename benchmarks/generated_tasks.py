"""Figure and tables of a model's results on `mdlm_parallel`: accuracy against the tokens that a step fills.

    tar -xf leaderboard/generated_tasks.tar.xz
    python benchmarks/generated_tasks.py generated_tasks/built-in-lists --output docs/figures

Hollow markers are bounds: what an ideal model reaches that draws 2 or 4 names per step (6 or 12 tokens) independently
of each other. They hold where tokens are sampled.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_lm_eval.results.plot import COLOURS, COLUMN_WIDTH, MARKERS, figure_style, save_figure
from mdlm_lm_eval.results.result_file import find_result_files, read_result_file

ONE = ("copy", "reverse", "sort", "insert_index", "remove_index", "replace_index")
SEVERAL = ("shuffle", "insert_anywhere", "remove_any", "replace_any")
#: Panel -> temperature and operations, a line each.
PANELS = {
    "one right answer": (0.0, ONE),
    "several right answers": (0.0, SEVERAL),
    "several right answers, sampled": (1.0, SEVERAL),
}
TOKENS = 3  # of a name in a list
N_QUESTIONS = 100  # of a task
Scores = dict[float, dict[int, dict[str, Mapping[str, float]]]]  # temperature -> tokens per step -> task -> metrics


def scores_of(folder: Path) -> Scores:
    """The results below a folder, of sweeps in blocks of `block_length` tokens with so many steps each."""
    found: Scores = {}
    for path in find_result_files(folder):
        for name, task in read_result_file(path).tasks.items():
            k = int(task.options["block_length"]) // int(task.options["steps_per_block"])
            found.setdefault(float(task.options["temperature"]), {}).setdefault(k, {})[name] = task.metrics
    return {temperature: dict(sorted(by_k.items())) for temperature, by_k in found.items()}


def lines_of(scores: Scores, temperature: float, operation: str) -> tuple[dict[int, float], dict[int, float]]:
    """By tokens per step, in percent: the accuracy, and where tokens are sampled its bounds at 2 and 4 names."""
    task = f"mdlm_parallel_{operation}"
    shown = {k: 100 * one[task]["exact_match,none"] for k, one in scores[temperature].items()}
    metrics = next(iter(scores[temperature].values()))[task]
    return shown, {TOKENS * n: 100 * metrics[f"bound_{n},none"] for n in (2, 4)} if temperature else {}


def table(scores: Scores) -> list[str]:
    """Rows in Markdown: what is asked, and accuracy at each number of tokens per step, with the bounds after it."""
    rows = []
    for temperature, operations in ((0.0, ONE + SEVERAL), (1.0, SEVERAL)):
        for operation in operations:
            shown, bounds = lines_of(scores, temperature, operation)
            cells = [f"{value:.1f}" for value in (*shown.values(), *bounds.values())]
            rows.append(" | ".join([f"| {operation.replace('_', ' ')}", *cells]) + " |")
    return rows


def lost(scores: Scores, temperature: float) -> str:
    """Mean points that the most tokens per step cost on operations with several answers, with a 95% interval.

    As if the questions of each setting were others, which does not make it narrower.
    """
    by_k = scores[temperature]
    few, many = (
        [by_k[k][f"mdlm_parallel_{operation}"]["exact_match,none"] for operation in SEVERAL]
        for k in (min(by_k), max(by_k))
    )
    variance = sum(share * (1 - share) for share in few + many) / N_QUESTIONS
    return f"{100 * (sum(few) - sum(many)) / len(SEVERAL):.1f} ± {100 * 1.96 * variance**0.5 / len(SEVERAL):.1f}"


def draw(scores: Scores) -> Figure:
    """A panel beside the other, a line for each operation."""
    figure = Figure(figsize=(COLUMN_WIDTH * (0.2 + 0.7 * len(PANELS)), 2.8), layout="constrained")
    grid = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (title, (temperature, operations)) in zip(grid, PANELS.items(), strict=True):
        for operation, colour, marker in zip(operations, COLOURS, MARKERS, strict=False):
            shown, bounds = lines_of(scores, temperature, operation)
            label = operation.replace("_", " ")
            axes.plot(list(shown), list(shown.values()), color=colour, marker=marker, label=label)
            if bounds:
                style = {"marker": marker, "markerfacecolor": "none", "linestyle": ":"}
                axes.plot(list(bounds), list(bounds.values()), color=colour, **style)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(scores[temperature])))
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
    with figure_style(svg_fonttype="none"):  # text stays text, in a small file
        save_figure(draw(scores), given.output / "tasks-parallel")
    print("\n".join(table(scores)))
    print(f"several right answers, lost: {lost(scores, 0.0)}; sampled: {lost(scores, 1.0)}")


if __name__ == "__main__":
    main()
