"""Figures and tables of a model's results on the generated tasks: accuracy against the tokens that a step fills.

    python benchmarks/generated_tasks.py leaderboard/generated_tasks/built-in-lists --output docs/figures

Hollow markers of the figure of lists are bounds: what an ideal model reaches that draws 2 or 4 names a step,
independently of each other. They count names, the axis counts tokens, a third of which are names.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from mdlm_lm_eval.results.figure_style import COLOURS, COLUMN_WIDTH, MARKERS, figure_style, save_figure
from mdlm_lm_eval.results.result_file import find_result_files, read_result_file

ONE_ANSWER = ("copy", "reverse", "sort", "insert_index", "remove_index", "replace_index")
SEVERAL_ANSWERS = ("shuffle", "insert_anywhere", "remove_any", "replace_any")
Tasks = Mapping[str, tuple[str, ...]]  # label -> tasks, of which a line shows the mean


def _each(group: str, *names: str) -> Tasks:
    return {name.replace("_", " "): (f"mdlm_{group}_{name}",) for name in names}


#: Figure -> panel -> lines.
FIGURES: dict[str, dict[str, Tasks]] = {
    "parallel": {
        "one right answer": _each("parallel", *ONE_ANSWER),
        "several right answers": _each("parallel", *SEVERAL_ANSWERS),
    },
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


def mean_of(scores: Mapping[str, Mapping[str, float]], tasks: Iterable[str]) -> float:
    """Accuracy over tasks, in percent."""
    return 100 * fmean(scores[task]["exact_match,none"] for task in tasks)


def bounds_of(scores: Scores, tasks: Iterable[str]) -> list[float]:
    """Of 2 and 4 names a step, in percent; none where they are 100 or the task has none."""
    metrics = [next(one[task] for one in scores.values() if task in one) for task in tasks]
    found = [100 * fmean(one.get(f"bound_{k},none", 1.0) for one in metrics) for k in (2, 4)]
    return found if min(found) < 100 else []


def table(panels: Mapping[str, Tasks], scores: Scores) -> list[str]:
    """Rows in Markdown: what is asked, accuracy in percent at each number of tokens per step, and bounds."""
    rows = []
    for lines in panels.values():
        for label, tasks in lines.items():
            shown = [mean_of(one, tasks) if set(tasks) <= one.keys() else None for one in scores.values()]
            cells = ["" if value is None else f"{value:.1f}" for value in [*shown, *bounds_of(scores, tasks)]]
            rows.append(" | ".join([f"| {label}", *cells]) + " |")
    return rows


@figure_style()
def draw(panels: Mapping[str, Tasks], scores: Scores) -> Figure:
    """A panel beside the other, a line for each group of tasks."""
    figure = Figure(figsize=(COLUMN_WIDTH * (0.2 + 0.7 * len(panels)), 2.8), layout="constrained")
    (grid,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for (label, tasks), colour, marker in zip(lines.items(), COLOURS, MARKERS, strict=False):
            shown = {k: mean_of(one, tasks) for k, one in scores.items() if set(tasks) <= one.keys()}
            axes.plot(list(shown), list(shown.values()), color=colour, marker=marker, label=label)
            if bounds := bounds_of(scores, tasks):
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
    parser.add_argument("--output", type=Path, required=True, help="folder for the figures")
    given = parser.parse_args()
    scores = scores_of(given.results)
    for name, panels in FIGURES.items():
        save_figure(draw(panels, scores), given.output / f"tasks-{name}")
        print("\n".join(table(panels, scores)))


if __name__ == "__main__":
    main()
