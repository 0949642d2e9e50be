"""Results of the first study of masks, on seven models: tables and figure from the committed answers.

`study.py` replaces it. Its models were trained with the documents of version 0.4.0's commit 9137ff9c.

python -m training.study_tables            # prints the tables
python -m training.study_tables --write    # puts them into docs/built_in_model.md, all intervals into CSV files beside
                                           # the answers, and the figure into docs/figures
"""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mdlm_lm_eval.results.figure_style import COLOURS, figure_style, on_dark
from mdlm_lm_eval.results.markdown import markdown_table, replace_table
from mdlm_lm_eval.results.statistics import (
    FEW_MODELS,
    LEAST_MODELS,
    Interval,
    OverModels,
    Score,
    comparisons,
    difference,
    holm,
    over_models,
    score_of_sets,
)
from mdlm_lm_eval.results.suite import SPELLING_ALONE
from training import asking
from training.asking import MEASURES, Answers

DOCS = Path(__file__).parents[1] / "docs"
ANSWERS = Path(__file__).parents[1] / "leaderboard/study"
PRETRAINED = ("plain-0", "plain-1", "plain-2", "plain-3", "plain-4", "contrastive-0", "contrastive-1")
MASKS = (2, 200)
#: Ending of a cell's name after the name of its pre-trained model -> name of the stage in tables.
STAGES = {"": "base", "-sft-0": "SFT", "-sft-ce-tv-0": "CE + TV on SFT", "-sft-ce-0": "CE only on SFT"}
STAGES |= {"-sft-control-0": "masks, not predicted, on SFT"}
PAGE_MEASURES = ("as decoded", "among letters", "EOS")
#: Name of a comparison -> two stages; the difference is the second minus the first.
COMPARISONS = {
    "SFT above base": ("", "-sft-0"),
    "CE + TV above SFT": ("-sft-0", "-sft-ce-tv-0"),
    "CE + TV above base": ("", "-sft-ce-tv-0"),
    "CE + TV above CE only": ("-sft-ce-0", "-sft-ce-tv-0"),
    "CE + TV above control": ("-sft-control-0", "-sft-ce-tv-0"),
}
COMPARED = ((2, "as decoded"), (200, "as decoded"), (200, "among letters"))
SHOWN_AMONG_LETTERS = ("SFT above base", "CE + TV above SFT")
#: Ending of an ablation cell's name after that of its pre-trained model -> the tokens after answers in training.
TAILS = {
    "-sft-none": "nothing",
    "-sft-shown": "EOS, shown",
    "-sft": "EOS, predicted",
    "-sft-masks": "masks, not predicted",
    "-ce": "masks, CE only",
    "-ce-tv": "masks, CE + TV",
}
#: Pairs of these that are compared, the first minus the second, on each pre-trained model.
ARMS_COMPARED = (
    ("EOS, predicted", "masks, not predicted"),
    ("EOS, predicted", "nothing"),
    ("masks, not predicted", "nothing"),
    ("masks, CE + TV", "masks, not predicted"),
    ("masks, CE + TV", "masks, CE only"),
)
Study = Mapping[str, Answers]  # cell -> its answers


def read_study(folder: Path = ANSWERS) -> Study:
    """The committed answers."""
    return {name: record["answers"] for name, record in read_records(folder).items()}


def read_records(folder: Path = ANSWERS) -> dict[str, Any]:
    """Name of a cell -> the content of its file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


@cache
def keys() -> dict[str, tuple[list[str], str]]:
    """Task -> the names of its sets, and their right letters."""
    return {
        task: ([one.name for one in some], "".join(one.right for one in some))
        for task, some in asking.asked(n_sets=asking.SETS).items()
    }


def values(answers: Answers, n_masks: int, measure: str) -> dict[str, list[tuple[str, float]]]:
    """Task -> set and value (0 or 1) of each question."""
    found = asking.values(answers[str(n_masks)], measure)
    return {task: [(one.name, value) for one, value in some] for task, some in found.items()}


def score(answers: Answers, n_masks: int, measure: str = "as decoded") -> Score:
    """Share of questions for which `measure` is true, with sets as clusters."""
    return score_of_sets(values(answers, n_masks, measure))


def changed(answers: Answers) -> Score:
    """Share of questions with another likeliest token with 200 masks than with 2."""
    few, most = (answers[str(n)] for n in MASKS)
    return score_of_sets(
        {
            task: [
                (name, float(one != other)) for name, one, other in zip(sets, few[task][0], most[task][0], strict=True)
            ]
            for task, (sets, _) in keys().items()
        }
    )


def compared(study: Study, name: str, base: str, n_masks: int, measure: str = "as decoded") -> Interval | None:
    """A comparison on one pre-trained model, in points. None if one of the stages is not finished."""
    models = [study.get(base + stage) for stage in COMPARISONS[name]]
    scores = [score(one, n_masks, measure) for one in models if one]
    return difference(*scores).scaled(100) if len(scores) == 2 else None


def significant(study: Study) -> set[tuple[str, str, int, str]]:
    """The comparisons (name, pre-trained model, masks, measure) whose p value is small by Holm's method, over all."""
    tested = {}
    for (name, stages), base, (n, measure) in product(COMPARISONS.items(), fine_tuned(study), COMPARED):
        models = [study.get(base + stage) for stage in stages]
        if all(models):
            tested[name, base, n, measure] = comparisons([score(one, n, measure) for one in models if one])[0, 1]
    return {key for key, is_small in zip(tested, holm(np.array([*tested.values()])), strict=True) if is_small}


def tables(study: Study) -> str:
    """The tables of the study as Markdown, each with a line of explanation before it."""
    return "\n\n".join(
        (
            "Every model with 2 and with 200 masks:",
            _shares(study),
            "Differences in points, with 2 or 200 masks; the first two rows are percent of answers, before SFT:",
            _comparisons(study),
            "The first four rows change only what follows the answers in training. Percent right as decoded, 2→200 "
            "masks, over five seeds of fine-tuning on `plain-0` and two on the others:",
            _ablation(study),
            f"Differences of its rows in points. {FEW_MODELS}",
            _arms_compared(study),
        )
    )


def _shares(study: Study) -> str:
    heads = ["", *(f"{measure}, {n}" for n, measure in product(MASKS, PAGE_MEASURES))]
    rows = []
    for base, stage in product((*PRETRAINED, "block-0"), list(STAGES)[:2]):
        if answers := study.get(base + stage):
            shares = (score(answers, n, measure) for n, measure in product(MASKS, PAGE_MEASURES))
            cells = (_short(one.interval.scaled(100)) for one in shares)
            rows.append([STAGES[stage] if stage else f"`{base}`", *cells])
    return markdown_table(heads, rows)


def _short(found: Interval | None) -> str:
    """A share in percent or a difference in points, such as "84.4 (83…86)"."""
    return f"{found.mean:.1f} ({found.low:.0f}…{found.high:.0f})" if found else "–"


def with_wrong_labels(answers: Answers, n_masks: int) -> Score:
    """Share of right answers if examples have another rule's labels. Such prompts are those of the other rule."""
    by_rule: dict[tuple[str, str], str] = {}
    for task, (sets, _) in keys().items():
        by_rule |= {
            (name, task.split("_")[2]): sign for name, sign in zip(sets, answers[str(n_masks)][task][0], strict=True)
        }
    right = [(name, float(by_rule[name, other] == letter)) for name, other, letter in _wrong_labels()]
    return score_of_sets({"wrong": right})


@cache
def _wrong_labels() -> list[tuple[str, str, str]]:
    """For every rule that a set is asked under: its name, the rule of its wrong labels, and its right letter."""
    from mdlm_lm_eval.tasks import questions, rule_sets

    asked = {(name, task.split("_")[2]) for task, (sets, _) in keys().items() for name in sets}
    return [
        (name, rule_sets.wrong_rule(rule, one.triple), "ABC"[one.question(rule).answer])
        for distractor, rule in product(questions.DISTRACTOR_RULES, questions.WRONG_CATEGORIES)
        for name, one in rule_sets.asked_sets(rule, distractor).items()
        if (name, rule) in asked
    ]


def fine_tuned(study: Study) -> list[str]:
    """The pre-trained models with an SFT model."""
    return [base for base in PRETRAINED if {base, f"{base}-sft-0"} <= study.keys()]


def _comparisons(study: Study) -> str:
    bases = fine_tuned(study)
    first = {
        "changed by the number of masks": [changed(study[base]) for base in bases],
        "right with another rule's labels": [with_wrong_labels(study[base], 2) for base in bases],
    }
    rows = [[name, *(_short(one.interval.scaled(100)) for one in scores)] for name, scores in first.items()]
    for name, (n, measure) in product(COMPARISONS, COMPARED):
        found = [compared(study, name, base, n, measure) for base in bases]
        if any(found) and (measure == "as decoded" or name in SHOWN_AMONG_LETTERS):
            rows.append([", ".join((name, str(n), measure)).removesuffix(", as decoded"), *map(_short, found)])
    return markdown_table(["", *(f"`{base}`" for base in bases)], rows)


def arms(study: Study, base: str) -> dict[str, list[Answers]]:
    """Tokens after answers in training -> answers of the ablation's models on a base, for each seed of fine-tuning."""
    found: dict[str, list[Answers]] = {}
    for (tail, words), seed in product(TAILS.items(), range(5)):
        if answers := study.get(f"{base}{tail}-{seed}"):
            found.setdefault(words, []).append(answers)
    return found


def mean(seeds: Iterable[Answers], n_masks: int, measure: str = "as decoded") -> float:
    """The mean score of one model over seeds of its fine-tuning, in percent."""
    return fmean(100 * score(one, n_masks, measure).mean for one in seeds)


def arms_compared(
    study: Study, first: str, second: str, n_masks: int, measure: str = "as decoded"
) -> OverModels | None:
    """The first arm minus the second on each pre-trained model, in points. None if one is not finished."""
    of_models = [arms(study, base) for base in fine_tuned(study)]
    if not all({first, second} <= own.keys() for own in of_models):
        return None
    return over_models([mean(own[first], n_masks, measure) - mean(own[second], n_masks, measure) for own in of_models])


def _ablation(study: Study) -> str:
    bases = fine_tuned(study)
    rows = []
    for words in TAILS.values():
        of_models = [arms(study, base).get(words) for base in bases]
        if any(of_models):
            rows.append([words, *(_few_and_most(seeds) if seeds else "–" for seeds in of_models)])
    return markdown_table(["after answers", *(f"`{base}`" for base in bases)], rows)


def _few_and_most(seeds: Sequence[Answers]) -> str:
    """Percent right as decoded with 2 and with 200 masks."""
    return "→".join(f"{mean(seeds, n):.1f}" for n in MASKS)


def _arms_compared(study: Study) -> str:
    bases = fine_tuned(study)
    rows = []
    for pair, (n, measure) in product(ARMS_COMPARED, COMPARED):
        if found := arms_compared(study, *pair, n, measure):
            changes = (f"{change:+z.1f}" for change in found.changes)
            middle = _short(found.median) if len(bases) >= LEAST_MODELS else f"{found.median.mean:+z.1f}"
            rows.append([f"{' above '.join(pair)}, {n}, {measure}", *changes, middle, f"{found.p:.2g}"])
    heads = ["", *(f"`{base}`" for base in bases), "median", "sign test, p"]
    return markdown_table(heads, [[row[0].removesuffix(", as decoded"), *row[1:]] for row in rows])


def csv_files(study: Study) -> dict[str, str]:
    """Name -> content of the CSV files beside the answers.

    They have all shares of all models, each seed's in the arms of the ablation, and all comparisons.
    """
    shown = list(product(MASKS, MEASURES))
    shares = [["model", *(f"{measure} at {n}" for n, measure in shown), "changed", "with wrong labels at 2"]]
    for name, answers in study.items():
        scores = *(score(answers, *what) for what in shown), changed(answers), with_wrong_labels(answers, 2)
        shares.append([name, *(one.interval.scaled(100).in_words for one in scores)])
    bases = fine_tuned(study)
    ablation = [["model", "after answers", "seeds", *(f"{measure} at {n}" for n, measure in shown)]]
    for base in bases:
        for words, seeds in arms(study, base).items():
            values = (" ".join(f"{100 * score(one, *what).mean:.1f}" for one in seeds) for what in shown)
            ablation.append([base, f'"{words}"', str(len(seeds)), *values])
    gains = [["points", *bases]]
    for name, (n, measure) in product(COMPARISONS, COMPARED):
        found = (compared(study, name, base, n, measure) for base in bases)
        gains.append([f"{name}: {measure} at {n}", *(one.in_words if one else "" for one in found)])
    return {
        f"{name}.csv": "".join(",".join(row) + "\n" for row in rows)
        for name, rows in (("shares", shares), ("gains", gains), ("ablation", ablation))
    }


def hours() -> float:
    """CPU time of all committed cells, in hours."""
    return sum(sum(one["cpu_minutes"].values()) for one in read_records().values()) / 60


# The figure

#: Parts of a bar: right answers, answers lost to another token than a letter, and wrong letters.
PARTS = ("right", "not a letter, likeliest letter right", "likeliest letter wrong")


def compact(table: str) -> str:
    """The same Markdown without spaces around its bars."""
    return re.sub(r" *\| *", "|", table)


def write_figure(study: Study, folder: Path) -> None:
    """Draws the shares of answers with 200 masks: `study-light.svg`, `-dark`, and both `-narrow-` for phones."""
    for name, width in (("study", 7.4), ("study-narrow", 3.7)):
        with figure_style(font_size=8, axes_titlesize=8, legend_fontsize=8, xtick_labelsize=8, ytick_labelsize=8):
            figure = _drawn(study, is_wide=width > 5, width=width)
            light = folder / f"{name}-light.svg"
            figure.savefig(light, metadata={"Date": None}, transparent=True)
        (folder / f"{name}-dark.svg").write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")


def _drawn(study: Study, *, is_wide: bool, width: float) -> Figure:
    bases = fine_tuned(study)
    panels = (1, 3) if is_wide else (3, 1)
    figure = Figure(figsize=(width, (0.8 if is_wide else 1.2) + panels[0] * (0.25 + 0.2 * len(bases))))
    figure.set_layout_engine("constrained")
    for axes, stage in zip(figure.subplots(*panels, sharex=True, sharey=True).flat, STAGES, strict=False):
        for height, base in enumerate(reversed(bases)):
            if answers := study.get(base + stage):
                _draw_bar(axes, answers, height)
        axes.axvline(
            SPELLING_ALONE, color="#1a1a1a", linewidth=0.6, linestyle=":", label="spelling alone, among letters"
        )
        axes.set_title(STAGES[stage], loc="left")
        axes.set_xlim(0, 100)
        axes.set_yticks(range(len(bases)), reversed(bases))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    figure.supxlabel("percent of 384 questions")
    known = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known.keys(), loc="outside upper left", ncols=2 if is_wide else 1, frameon=False)
    return figure


def _draw_bar(axes: Axes, answers: Answers, height: float) -> None:
    decoded, letters = (100 * score(answers, 200, measure).mean for measure in ("as decoded", "among letters"))
    left = 0.0
    for label, end, colour in zip(PARTS, (decoded, letters, 100.0), (COLOURS[0], COLOURS[4], "#cccccc"), strict=True):
        axes.barh(height, end - left, left=left, height=0.8, color=colour, label=f"200 masks: {label}")
        left = end
    few = 100 * score(answers, 2).mean
    axes.plot([few], [height], "o", markersize=4, color="white", markeredgecolor="#1a1a1a", label="2 masks: right")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the documentation")
    is_to_write = parser.parse_args().write
    study = read_study()
    if is_to_write:
        replace_table(DOCS / "built_in_model.md", "study", compact(tables(study)))
        write_figure(study, DOCS / "figures")
        for name, text in csv_files(study).items():
            (ANSWERS / name).write_text(text, encoding="utf-8")
    else:
        print(tables(study))


if __name__ == "__main__":
    main()
