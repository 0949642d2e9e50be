"""What the study of masks found: tables and figure from the committed answers.

python -m training.study_tables            # prints the tables
python -m training.study_tables --write    # puts them into docs/built_in_model.md, all intervals into CSV files beside
                                           # the answers, and the figure into docs/figures
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
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
STAGES |= {"-sft-control-0": "masks, not predicted, on SFT"}
PAGE_MEASURES = ("as decoded", "among letters", "EOS")
#: A comparison -> two stages, the second above the first.
COMPARISONS = {
    "SFT above base": ("", "-sft-0"),
    "CE + TV above SFT": ("-sft-0", "-sft-ce-tv-0"),
    "CE + TV above base": ("", "-sft-ce-tv-0"),
    "CE + TV above CE only": ("-sft-ce-0", "-sft-ce-tv-0"),
    "CE + TV above control": ("-sft-control-0", "-sft-ce-tv-0"),
}
COMPARED = ((2, "as decoded"), (200, "as decoded"), (200, "among letters"))
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


def compared(study: Study, name: str, bases: Sequence[str], n_masks: int, measure: str = "as decoded") -> Interval:
    """A comparison, in points, of the mean of pretrained models, which are random if they are several."""
    stages = ([study[base + stage] for base in bases] for stage in COMPARISONS[name])
    return difference(*(mean(models, n_masks, measure) for models in stages)).scaled(100)


def with_both(study: Study, name: str, kind: str = "") -> list[str]:
    """The pretrained models of a kind in which both stages of a comparison are finished."""
    return [base for base in _fine_tuned(study, kind) if all(base + stage in study for stage in COMPARISONS[name])]


def tables(study: Study) -> str:
    """The study's tables as Markdown."""
    return "\n\n".join((_shares(study), _labels(study), _comparisons(study), _ablation(study)))


def _shares(study: Study) -> str:
    heads = ["", *(f"{measure}, {n}" for n, measure in product(MASKS, PAGE_MEASURES))]
    rows = []
    for base, stage in product((*PRETRAINED, "block-0"), list(STAGES)[:3]):
        if answers := study.get(base + stage):
            shares = (score(answers, n, measure) for n, measure in product(MASKS, PAGE_MEASURES))
            rows.append([STAGES[stage] if stage else f"`{base}`", *map(_short, shares)])
    return markdown_table(heads, rows)


def _short(of: Score) -> str:
    """Such as "84.4 (83–86)"."""
    found = of.interval.scaled(100)
    return f"{found.mean:.1f} ({found.low:.0f}–{found.high:.0f})"


def _labels(study: Study) -> str:
    bases = [base for base in PRETRAINED if base in study]
    rows = [["true", *(_short(score(study[base], 2)) for base in bases)]]
    rows += [["wrong", *(_short(with_wrong_labels(study[base], 2)) for base in bases)]]
    return markdown_table(["labels", *(f"`{base}`" for base in bases)], rows)


def with_wrong_labels(answers: Answers, n_masks: int) -> Score:
    """Share right where examples show another rule's answers: that prompt is the other rule's with true labels."""
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
    return score_of_sets({"wrong": right})


def _fine_tuned(study: Study, kind: str = "") -> list[str]:
    return [base for base in PRETRAINED if base.startswith(kind) and base in study and f"{base}-sft-0" in study]


def _comparisons(study: Study) -> str:
    rows = []
    for name in COMPARISONS:
        if bases := with_both(study, name, "plain"):
            told = [
                f"{compared(study, name, bases, *what).in_words}, {_signs(study, name, *what)}" for what in COMPARED
            ]
            rows.append([name, str(len(bases)), *told])
    return markdown_table(["points", "`plain` seeds", *(f"{measure}, {n}" for n, measure in COMPARED)], rows)


def _signs(study: Study, name: str, n_masks: int, measure: str) -> str:
    """In how many seeds of `plain` a comparison is significant, with its sign, such as "+2 -0"."""
    found = [compared(study, name, [base], n_masks, measure) for base in with_both(study, name, "plain")]
    more, less = (sum(one.is_significant and sign * one.mean > 0 for one in found) for sign in (1, -1))
    return f"+{more} -{less}"


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
    shown = ((2, "as decoded"), *((200, measure) for measure in PAGE_MEASURES))
    rows = []
    for base in PRETRAINED:
        found = arms(study, base)
        for words, seeds in found.items() if len(found) > 2 else ():
            shares = (_short(mean(seeds, n, measure)) for n, measure in shown)
            rows.append([f"`{base}`", words, str(len(seeds)), *shares])
    return markdown_table(["", "after answers", "seeds", *(f"{measure}, {n}" for n, measure in shown)], rows)


def csv_files(study: Study) -> dict[str, str]:
    """File beside the answers -> content: all shares of all models, and all comparisons in all of them."""
    shares = [["model", *(f"{measure} at {n}" for n, measure in product(MASKS, MEASURES)), "changed"]]
    for name, answers in study.items():
        words = (score(answers, n, measure).interval.scaled(100).in_words for n, measure in product(MASKS, MEASURES))
        shares.append([name, *words, f"{100 * changed(answers):.1f}"])
    bases = _fine_tuned(study)
    gains = [["points", *bases]]
    for name, what in product(COMPARISONS, COMPARED):
        known = with_both(study, name)
        told = (compared(study, name, [one], *what).in_words if one in known else "" for one in bases)
        gains.append([f"{name}: {what[1]} at {what[0]}", *told])
    return {
        f"{name}.csv": "".join(",".join(row) + "\n" for row in rows)
        for name, rows in (("shares", shares), ("gains", gains))
    }


def hours() -> float:
    """CPU time of all committed cells."""
    return sum(sum(one["cpu_minutes"].values()) for one in read_records().values()) / 60


# The figure

#: What is drawn of the answers: what is right, what is lost to another token than a letter, and what is not read.
PARTS = ("right", "another token, mostly EOS, where the likeliest letter is right", "the likeliest letter is wrong")


def write_figure(study: Study, folder: Path) -> None:
    """What becomes of the answers at 2 and 200 masks: `study-light.svg`, `-dark`, and both `-narrow-` for phones."""
    for name, width in (("study", 7.4), ("study-narrow", 3.7)):
        with figure_style(font_size=8, axes_titlesize=8, legend_fontsize=8, xtick_labelsize=8, ytick_labelsize=8):
            figure = _drawn(study, width)
            light = folder / f"{name}-light.svg"
            figure.savefig(light, metadata={"Date": None}, transparent=True)
        (folder / f"{name}-dark.svg").write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")


def _drawn(study: Study, width: float) -> Figure:
    rows = [
        (kind, stage, models)
        for kind, stage in product(("plain", "contrastive"), list(STAGES)[:3])
        if (models := [study[base + stage] for base in _fine_tuned(study, kind) if base + stage in study])
    ]
    heights = [-(n + 0.7 * (kind != "plain")) for n, (kind, *_) in enumerate(rows)]
    labels = [f"{len(models)} {kind}: base" if not stage else STAGES[stage] for kind, stage, models in rows]
    figure = Figure(figsize=(width, 0.8 + 0.25 * len(rows)), layout="constrained")
    for axes, n_masks in zip(figure.subplots(1, 2, sharey=True), MASKS, strict=True):
        for (_, _, models), height in zip(rows, heights, strict=True):
            _draw_bar(axes, models, n_masks, height)
        axes.set_title(f"{n_masks} masks", loc="left")
        axes.set_xlim(0, 100)
        axes.set_yticks(heights, labels)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    figure.supxlabel("percent of 384 questions")
    known = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known.keys(), loc="outside upper left", ncols=2 if width > 5 else 1, frameon=False)
    return figure


def _draw_bar(axes: Axes, models: Sequence[Answers], n_masks: int, height: float) -> None:
    decoded, letters = (
        [100 * score(answers, n_masks, measure).mean for answers in models]
        for measure in ("as decoded", "among letters")
    )
    ends = (fmean(decoded), fmean(letters), 100.0)
    left = 0.0
    for label, end, colour in zip(PARTS, ends, (COLOURS[0], COLOURS[4], "#cccccc"), strict=True):
        axes.barh(height, end - left, left=left, height=0.8, color=colour, label=label)
        left = end
    lines = [height] * len(models)
    axes.plot(decoded, lines, "o", markersize=3, color="white", markeredgecolor="#1a1a1a", label="right, one model")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the documentation")
    is_to_write = parser.parse_args().write
    study = read_study()
    if is_to_write:
        replace_table(DOCS / "built_in_model.md", "study", tables(study))
        write_figure(study, DOCS / "figures")
        for name, text in csv_files(study).items():
            (ANSWERS / name).write_text(text, encoding="utf-8")
    else:
        print(tables(study))


if __name__ == "__main__":
    main()
