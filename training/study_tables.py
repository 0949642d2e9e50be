"""What the study of masks found: tables and figure from the committed answers.

python -m training.study_tables            # prints the tables
python -m training.study_tables --write    # puts them into docs/built_in_model.md, and the figure into docs/figures
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mdlm_lm_eval.results.figure_style import COLOURS, figure_style, on_dark
from mdlm_lm_eval.results.markdown import markdown_table, replace_table
from mdlm_lm_eval.results.statistics import Interval, Score, difference, mean_of_seeds, score_of_sets
from training.study import ANSWERS, MASKS, MEASURES, PRETRAINED, Answers, keys, values

DOCS = Path(__file__).parents[1] / "docs"
#: What follows the name of a pretrained model in those of its cells -> what they are called.
STAGES = {"": "base", "-sft-0": "SFT", "-sft-ce-tv-0": "CE + TV on SFT", "-sft-ce-0": "CE only on SFT"}
#: A comparison -> two stages with masks, the second above the first, and what is compared.
COMPARISONS: dict[str, tuple[tuple[str, int], tuple[str, int], str]] = {
    "base: 200 masks above 2": (("", 2), ("", 200), "as decoded"),
    "SFT above base, 2 masks": (("", 2), ("-sft-0", 2), "as decoded"),
    "SFT above base, 200 masks": (("", 200), ("-sft-0", 200), "as decoded"),
    "SFT above base, 200 masks, among letters": (("", 200), ("-sft-0", 200), "among letters"),
    "CE + TV above SFT, 2 masks": (("-sft-0", 2), ("-sft-ce-tv-0", 2), "as decoded"),
    "CE + TV above SFT, 200 masks": (("-sft-0", 200), ("-sft-ce-tv-0", 200), "as decoded"),
    "CE + TV above SFT, 200 masks, among letters": (("-sft-0", 200), ("-sft-ce-tv-0", 200), "among letters"),
    "CE only above SFT, 200 masks": (("-sft-0", 200), ("-sft-ce-0", 200), "as decoded"),
    "CE + TV above CE only, 200 masks": (("-sft-ce-0", 200), ("-sft-ce-tv-0", 200), "as decoded"),
}
#: What follows the name of a pretrained model in those of the ablation's cells -> what follows answers in training.
TAILS = {
    "-sft-none": "nothing",
    "-sft-shown": "EOS, shown",
    "-sft": "EOS, predicted",
    "-sft-masks": "masks, not predicted",
    "-ce": "masks, CE only",
    "-ce-tv": "masks, CE + TV",
}
Study = Mapping[str, Answers]  # cell -> its answers


def read_study(folder: Path = ANSWERS) -> Study:
    """The committed answers."""
    return {name: record["answers"] for name, record in read_records(folder).items()}


def read_records(folder: Path = ANSWERS) -> dict[str, Any]:
    """Cell -> its file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def score(answers: Answers, n_masks: int, measure: str = "as decoded") -> Score:
    """Share of the questions, over sets."""
    return score_of_sets(values(answers, n_masks, measure))


def changed(answers: Answers) -> float:
    """Share of the questions whose likeliest token the number of masks changes."""
    few, most = (answers[str(n)] for n in MASKS)
    return fmean(one != other for task in few for one, other in zip(few[task][0], most[task][0], strict=True))


def compared(study: Study, name: str) -> dict[str, Interval]:
    """Pretrained model that was fine-tuned -> a comparison of its stages, in points, where both are finished."""
    *ends, measure = COMPARISONS[name]
    found = {}
    for base in _fine_tuned(study):
        if all(base + stage in study for stage, _ in ends):
            one, other = (score(study[base + stage], n, measure) for stage, n in ends)
            found[base] = difference(one, other).scaled(100)
    return found


def tables(study: Study) -> str:
    """The study's tables as Markdown."""
    return "\n\n".join((_shares(study), _labels(study), _comparisons(study), _ablation(study)))


def _shares(study: Study) -> str:
    heads = ["", *(f"{measure}, {n} masks" for n, measure in product(MASKS, MEASURES)), "changed"]
    rows = []
    for base, (stage, words) in product((*PRETRAINED, "block-0"), STAGES.items()):
        if answers := study.get(base + stage):
            shares = (score(answers, n, measure).interval for n, measure in product(MASKS, MEASURES))
            name = words if stage else f"`{base}`"
            rows.append([name, *(one.scaled(100).in_words for one in shares), f"{100 * changed(answers):.1f}"])
    return markdown_table(heads, rows)


def _labels(study: Study) -> str:
    rows = [
        [f"`{name}`", score(study[name], 2).interval.scaled(100).in_words, with_wrong_labels(study[name], 2)]
        for name in PRETRAINED
        if name in study
    ]
    return markdown_table(["", "true labels", "wrong labels"], rows)


def with_wrong_labels(answers: Answers, n_masks: int) -> str:
    """Percent right where examples show another rule's answers: that prompt is the other rule's with true labels."""
    from mdlm_lm_eval.tasks import questions, rule_sets

    by_rule: dict[tuple[str, str], str] = {}
    for task, (sets, _) in keys().items():
        by_rule |= {
            (name, task.split("_")[2]): sign for name, sign in zip(sets, answers[str(n_masks)][task][0], strict=True)
        }
    right = []
    for distractor, rule in product(questions.DISTRACTOR_RULES, questions.WRONG_CATEGORIES):
        for name, one in rule_sets.asked_sets(rule, distractor).items():
            if (name, rule) in by_rule:
                given = by_rule[name, rule_sets.wrong_rule(rule, one.triple)]
                right.append((name, float(given == "ABC"[one.question(rule).answer])))
    return score_of_sets({"wrong": right}).interval.scaled(100).in_words


def _fine_tuned(study: Study) -> list[str]:
    return [base for base in PRETRAINED if base in study and f"{base}-sft-0" in study]


def _comparisons(study: Study) -> str:
    bases = _fine_tuned(study)
    rows = []
    for name in COMPARISONS:
        if not (found := compared(study, name)):
            continue
        signs = [(one.mean > 0) - (one.mean < 0) for one in found.values() if one.is_significant]
        share = f"{max(map(signs.count, signs), default=0)} of {len(found)}"
        told = (found[base].in_words if base in found else "–" for base in bases)
        rows.append([name, *told, share])
    return markdown_table(["points", *(f"`{base}`" for base in bases), "significant in"], rows)


def arms(study: Study, base: str) -> dict[str, list[Answers]]:
    """What follows the answers in training -> the models of the ablation on a base, by their fine-tuning seed."""
    found: dict[str, list[Answers]] = {}
    for (tail, words), seed in product(TAILS.items(), range(5)):
        if answers := study.get(f"{base}{tail}-{seed}"):
            found.setdefault(words, []).append(answers)
    return found


def mean(seeds: Iterable[Answers], n_masks: int, measure: str = "as decoded") -> Score:
    """Of the models of several fine-tuning seeds, which are random."""
    return mean_of_seeds([score(one, n_masks, measure) for one in seeds])


def _ablation(study: Study) -> str:
    shown = ((2, "as decoded"), (200, "as decoded"), (200, "among letters"), (200, "EOS"))
    rows = []
    for base in PRETRAINED:
        found = arms(study, base)
        for words, seeds in found.items() if len(found) > 1 else ():
            shares = (mean(seeds, n, measure).interval.scaled(100).in_words for n, measure in shown)
            rows.append([f"`{base}`", words, str(len(seeds)), *shares])
    heads = ("", "after answers in training", "seeds", *(f"{measure}, {n} masks" for n, measure in shown))
    return markdown_table(heads, rows)


def hours() -> float:
    """CPU time of all committed cells."""
    return sum(sum(one["cpu_minutes"].values()) for one in read_records().values()) / 60


# The figure

#: What is drawn of the answers: what is right, what is lost to the end of the text, and what is not read.
PARTS = ("right", "the text ends where the likeliest letter is right", "the likeliest letter is wrong")


def write_figure(study: Study, folder: Path) -> None:
    """What becomes of the answers at 2 and 200 masks: `study-light.svg`, `-dark`, and both `-narrow-` for phones."""
    for name, width in (("study", 7.4), ("study-narrow", 3.7)):
        with figure_style(font_size=8, axes_titlesize=8, legend_fontsize=8, xtick_labelsize=8, ytick_labelsize=8):
            figure = _drawn(study, width)
            light = folder / f"{name}-light.svg"
            figure.savefig(light, metadata={"Date": None}, transparent=True)
        (folder / f"{name}-dark.svg").write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")


def _drawn(study: Study, width: float) -> Figure:
    stages = list(STAGES)[:3]
    bases = _fine_tuned(study)
    rows = [(base, stage) for base in bases for stage in stages if base + stage in study]
    heights = [-(n + 0.7 * bases.index(base)) for n, (base, _) in enumerate(rows)]
    figure = Figure(figsize=(width, 0.7 + 0.22 * len(rows)), layout="constrained")
    for axes, n_masks in zip(figure.subplots(1, 2, sharey=True), MASKS, strict=True):
        for (base, stage), height in zip(rows, heights, strict=True):
            _draw_bar(axes, study[base + stage], n_masks, height)
        axes.set_title(f"{n_masks} masks", loc="left")
        axes.set_xlim(0, 100)
        axes.set_yticks(heights, [f"{base}, base" if not stage else STAGES[stage] for base, stage in rows])
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    figure.supxlabel("percent of 384 questions")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="outside upper left", ncols=3 if width > 5 else 1, frameon=False)
    return figure


def _draw_bar(axes: Axes, answers: Answers, n_masks: int, height: float) -> None:
    decoded, letters = (100 * score(answers, n_masks, measure).mean for measure in ("as decoded", "among letters"))
    left = 0.0
    for label, share, colour in zip(
        PARTS, (decoded, letters - decoded, 100 - letters), (COLOURS[0], COLOURS[4], "#cccccc"), strict=True
    ):
        axes.barh(height, share, left=left, height=0.8, color=colour, label=label)
        left += share


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the documentation")
    is_to_write = parser.parse_args().write
    study = read_study()
    if is_to_write:
        replace_table(DOCS / "built_in_model.md", "study", tables(study))
        write_figure(study, DOCS / "figures")
    else:
        print(tables(study))


if __name__ == "__main__":
    main()
