"""Results of the registered study (`REGISTERED.md`): tables, sentences and figure from the committed answers.

python -m training.study_tables            # prints the tables
python -m training.study_tables --write    # puts them into the documentation, and the figure into docs/figures
"""

import argparse
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from mdlm_lm_eval.results.plot import COLOURS, figure_style, on_dark
from mdlm_lm_eval.results.statistics import LEAST_MODELS, Interval, holm, median_of, sign_test
from mdlm_lm_eval.results.text import compact, markdown_table, replace_table
from training import asking
from training.asking import OUTCOME, strata
from training.study import ANSWERS, ARMS, N_READING, SEEDS, read_seed, reads

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/built_in_model.md"
#: Place in a document -> the documents that have it.
PLACES = {
    "study": (PAGE,),
    "headline": (ROOT / "README.md",),
    "finding": (PAGE,),
    "control": (PAGE,),
    "tv": (ROOT / "finetune/README.md",),
    "repair": (PAGE,),
    "shipped": (ROOT / "mdlm_lm_eval/models/built-in/README.md",),
}
SHIPPED = 19  # the seed of `built-in` and `built-in-instruct`
PRIMARY = [name for name, arm in ARMS.items() if not arm.is_secondary]
SECONDARY = [name for name, arm in ARMS.items() if arm.is_secondary]
#: The two contrasts of the registration, the first arm minus the second.
CONTRASTS = {"EOS padding": ("sft", "sft-masks"), "TV": ("sft-ce-tv", "sft-ce")}
COLLAPSE = 30.0  # points: a model that loses more collapses
NO_EFFECT = 5.0  # points: a whole interval within these limits means no effect
WORDS = {"2": "2 masks", "200": "200 masks", "dots": "199 dots"}
#: Arm -> its name in the figure.
DRAWN = {
    "base": "before\nfine-tuning",
    "sft": "EOS padding",
    "sft-masks": "mask padding",
    "sft-ce": "EOS padding,\nthen CE",
    "sft-ce-tv": "EOS padding,\nthen CE + TV",
}
ENDINGS_DRAWN = ("2", "200", "dots")  # a line joins the first two
Study = Mapping[int, Mapping[str, Any]]  # seed -> arm -> record of its model


def read_study(path: Path = ANSWERS) -> Study:
    """The committed answers of all seeds."""
    return {int(seed): models for seed, models in json.loads(lzma.decompress(path.read_bytes())).items()}


def add_answers(folder: Path, path: Path = ANSWERS) -> None:
    """Adds the files `seed-N.json` of a folder to the committed answers."""
    new = {seed: models for seed in SEEDS if (models := read_seed(seed, folder))}
    study = dict(sorted({**(read_study(path) if path.exists() else {}), **new}.items()))
    path.write_bytes(lzma.compress(json.dumps(study).encode()))


def reading(study: Study) -> Study:
    """The models that count: the first twenty that read."""
    seeds = [seed for seed, models in study.items() if reads(models)]
    return {seed: study[seed] for seed in seeds[:N_READING]}


def percent(model: Mapping[str, Any], ending: str, measure: str = "as decoded") -> float:
    """The share of a model's answers for which `measure` is true, on the questions of the outcome."""
    return asking.percent(model["answers"][str(OUTCOME)][ending], measure)


@dataclass(frozen=True)
class OverModels:
    """Paired changes of trained models in points, and what they say about other models of the kind.

    changes: in the order of the models.
    median: the median change with its order-statistic interval.
    p: the two-sided probability of the sign test.
    n_collapsed: the number of models that lose more than `COLLAPSE` points.
    collapsed: their share in percent, with Clopper and Pearson's interval.

    Fewer than `LEAST_MODELS` have no intervals (`FEW_MODELS`).
    """

    changes: tuple[float, ...]
    median: Interval
    p: float
    n_collapsed: int
    collapsed: Interval


def over_models(changes: Sequence[float]) -> OverModels:
    """Statistics of paired changes in points, one of each trained model.

    A mean of models that may collapse is decided by those that do, so it has no interval that holds; their median and
    the share that collapses have (`benchmarks/interval_coverage.py`).
    """
    n, n_collapsed = len(changes), sum(change < -COLLAPSE for change in changes)
    collapsed = Interval(n_collapsed / n)
    if n >= LEAST_MODELS:
        collapsed = Interval(n_collapsed / n, *binomtest(n_collapsed, n).proportion_ci(method="exact"))
    return OverModels(tuple(changes), median_of(changes), sign_test(changes), n_collapsed, collapsed.scaled(100))


def changes(study: Study, first: str, second: str, *what: str, minus: Sequence[str] = ()) -> OverModels:
    """The first arm minus the second in each model, in points; `minus`: what the second is measured by, if other."""
    of = [models for models in study.values() if {first, second} <= models.keys()]
    return over_models([percent(one[first], *what) - percent(one[second], *(minus or what)) for one in of])


def signed(over: OverModels) -> str:
    """The median change with its interval, such as "-14.3 (-20.1 to -8.8)"."""
    return over.median.signed if len(over.changes) >= LEAST_MODELS else f"{over.median.mean:+z.1f}"


def chance(p: float) -> str:
    """The probability of a sign test in words."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def collapsed(over: OverModels) -> str:
    """How many models collapse, such as "3 of 20 models (3 to 38%)"."""
    return f"{over.n_collapsed} of {len(over.changes)} models{_ends_of_share(over)}"


def _ends_of_share(over: OverModels) -> str:
    low, high = over.collapsed.low, over.collapsed.high
    return "" if low is None or high is None else f" ({low:.0f} to {high:.0f}%)"


# Primary


def primary(study: Study) -> dict[str, tuple[OverModels, OverModels, OverModels, str]]:
    """Contrast -> its changes, both arms' changes from their bases, and the verdict of the registration."""
    found = {name: changes(study, *pair, "200") for name, pair in CONTRASTS.items()}
    small = dict(zip(found, holm(np.array([one.p for one in found.values()])), strict=True))
    result = {}
    for name, over in found.items():
        arms = [changes(study, arm, "base", "200") for arm in CONTRASTS[name]]
        low, high = over.median.low, over.median.high
        verdict = "undecided"
        if small[name]:
            verdict = "worse" if over.median.mean < 0 else "better"
        elif low is not None and high is not None and max(-low, high) <= NO_EFFECT:
            verdict = "no effect" if arms[0].n_collapsed == arms[1].n_collapsed else "undecided"
        result[name] = (over, arms[0], arms[1], verdict)
    return result


def below_base(over: OverModels, ends: str = "") -> str:
    """How many models collapse, each beside its own base; `ends`: the interval of their share."""
    return (
        f"{over.n_collapsed} of {len(over.changes)} models{ends} score more than {COLLAPSE:.0f} points lower "
        "with 200 masks than before fine-tuning"
    )


def headline(study: Study) -> str:
    """What EOS padding does, in a few sentences."""
    over, predicted, masks, verdict = primary(study)["EOS padding"]
    n = len(over.changes)
    significant = "significant" if verdict in ("better", "worse") else "not significant"
    return (
        f"We fine-tuned {n} small models in two ways: with answers padded by end-of-text tokens (EOS), as in LLaDA, "
        "and with answers padded by masks. Then we appended 200 masks to each question:\n\n"
        f"- After EOS padding, {predicted.n_collapsed} of {n} models score more than {COLLAPSE:.0f} points lower than "
        f"before fine-tuning. After mask padding, {masks.n_collapsed or 'none'} does.\n"
        f"- Compared with mask padding, EOS padding {_moves(over)}. This is {significant} after correction for two "
        f"comparisons ({chance(over.p)} before), so our verdict is *{verdict}*."
    )


def finding(study: Study) -> str:
    """What EOS padding does, as sentences."""
    over, predicted, masks, verdict = primary(study)["EOS padding"]

    open_words = ", because the data neither show nor rule out an effect" if verdict == "undecided" else ""
    return (
        f"We fine-tuned {len(over.changes)} models of 1.1 million parameters in two ways. LLaDA's own fine-tuning pads "
        "answers with end-of-text tokens (EOS), which the model learns to predict. Our variant pads answers with masks "
        "instead. Brackets show 95% intervals.\n\n"
        f"- **Before and after:** After EOS padding, {below_base(predicted, _ends_of_share(predicted))}. After mask "
        f"padding, {collapsed(masks)} do.\n"
        f"- **EOS against mask padding:** With 200 masks, EOS padding {_moves(over)}, compared with mask padding "
        f"({chance(over.p)} before Holm's correction).\n\n"
        f"The verdict is *{verdict}*{open_words}."
    )


def control(study: Study) -> str:
    """How masks and as many dots compare before and after fine-tuning: a sentence and a table."""
    arms = {"base": "before fine-tuning", "sft": "after EOS padding", "sft-masks": "after mask padding"}
    apart = {words: changes(study, arm, arm, "200", minus=("dots",)) for arm, words in arms.items()}
    rows = [(words, signed(over), chance(over.p)) for words, over in apart.items()]
    return (
        "To see whether masks cost more than other text, we also appended 199 dots instead of masks. The table shows "
        "the median difference in points, and the p value before Holm's correction:\n\n"
        + compact(markdown_table(("models", "accuracy with 200 masks minus accuracy with 199 dots", "sign test"), rows))
    )


def tv(study: Study) -> str:
    """What TV adds to CE after EOS padding, in two sentences."""
    over, _, _, verdict = primary(study)["TV"]
    return (
        f"With 200 masks and {len(over.changes)} models, CE + TV {_moves(over)}, compared with CE alone "
        f"({chance(over.p)}). Our registered verdict is *{verdict}*."
    )


def repair(study: Study) -> str:
    """What CE and TV do after EOS padding, as sentences."""
    _, with_tv, without, _ = primary(study)["TV"]
    ce, ce_tv = (signed(changes(study, arm, "sft", "200")) for arm in ("sft-ce", "sft-ce-tv"))
    return (
        f"Training with CE alone changes the accuracy with 200 masks by a median of {ce} points. Training with CE + TV "
        f"changes it by a median of {ce_tv} points. Some models still score more than {COLLAPSE:.0f} points lower than "
        f"before any fine-tuning: {collapsed(without)} do after CE alone, and {collapsed(with_tv)} after CE + TV."
        f"\n\n{tv(study)}"
    )


def _moves(over: OverModels) -> str:
    """A median change as "changes accuracy by a median of -6.3 points (95%: -28.9 to -0.8)"."""
    low, high = over.median.low, over.median.high
    ends = "no interval" if low is None or high is None else f"95%: {low:+z.1f} to {high:+z.1f}"
    return f"changes accuracy by a median of {over.median.mean:+z.1f} points ({ends})"


# Tables


def tables(study: Study) -> str:
    """The medians of all arms as Markdown, with a line of explanation before them."""
    found = reading(study)
    return "\n\n".join(
        (
            f"The table shows medians over the {len(found)} models that count (of {len(study)} seeds), in percent of "
            "384 questions. Brackets show the lowest and the highest model. *Among letters* is the accuracy if the "
            "model could choose only A, B or C. *EOS* is the share of answers that begin with EOS:",
            _arms(found),
        )
    )


def _arms(found: Study) -> str:
    shown = [(ending, "as decoded") for ending in WORDS] + [("200", measure) for measure in ("among letters", "EOS")]
    rows = []
    for arm in PRIMARY:
        of = [models[arm] for models in found.values() if arm in models]
        cells = ([percent(model, *what) for model in of] for what in shown)
        rows.append([f"`{arm}`", *(f"{median(one):.1f} ({min(one):.0f}…{max(one):.0f})" for one in cells)])
    heads = [WORDS[ending] if measure == "as decoded" else f"{WORDS[ending]}, {measure}" for ending, measure in shown]
    return markdown_table(["name", *heads], rows)


def secondary(found: Study) -> dict[str, OverModels]:
    """Row of the secondary table -> its changes."""
    rows = {}
    for arm, other in product(PRIMARY, ("dots", "2")):
        rows[f"`{arm}`: 200 masks minus {WORDS[other]}"] = changes(found, arm, arm, "200", minus=(other,))
    for (first, second), (ending, measure) in product(
        CONTRASTS.values(), (("200", "among letters"), ("2", "as decoded"), ("dots", "as decoded"))
    ):
        rows[f"`{first}` minus `{second}`: {WORDS[ending]}, {measure}"] = changes(found, first, second, ending, measure)
    for (first, second), ending in product((("sft", "base"), ("sft-ce", "sft"), ("sft-ce-tv", "sft")), ("2", "200")):
        rows[f"`{first}` minus `{second}`: {WORDS[ending]}"] = changes(found, first, second, ending)
    return rows


def csv_files(study: Study) -> dict[str, str]:
    """Name -> content of the files beside the answers: every model, medians of strata, the secondary differences."""
    endings = [(ending, measure) for measure in asking.MEASURES for ending in WORDS]
    heads = ["seed", "arm", *(f"{measure}, {WORDS[ending]}" for ending, measure in endings)]
    of_models = [
        [str(seed), arm, *(f"{percent(model, *what):.2f}" for what in endings)]
        for seed, models in study.items()
        for arm, model in models.items()
    ]
    of_strata = [["arm", "stratum", "questions", *WORDS.values()]]
    found = reading(study)
    for arm in PRIMARY:
        answers = [models[arm]["answers"][str(OUTCOME)] for models in found.values()]
        shares = {ending: [strata(one[ending]) for one in answers] for ending in WORDS}
        for name, (_, n) in shares["2"][0].items():
            medians = (f"{median(one[name][0] for one in of):.2f}" for of in shares.values())
            of_strata.append([arm, f'"{name}"', str(n), *medians])
    rows = secondary(found)
    small = holm(np.array([one.p for one in rows.values()]))
    differences = [["difference", "median (interval)", "least", "most", "sign test p", "holds by Holm's method"]]
    for (name, over), is_small in zip(rows.items(), small, strict=True):
        ends = (f"{one:+.1f}" for one in (min(over.changes), max(over.changes)))
        differences.append([f'"{name}"', signed(over), *ends, f"{over.p:.3g}", "yes" if is_small else "no"])
    files = {
        "models.csv": [[f'"{head}"' for head in heads], *of_models],
        "strata.csv": of_strata,
        "secondary.csv": differences,
    }
    return {name: "".join(",".join(row) + "\n" for row in rows) for name, rows in files.items()}


def _shipped(study: Study) -> str:
    """The shipped models with 2 masks, 200 masks and 199 dots, over all questions and by the right letter."""
    of_arms = [
        [strata(study[SHIPPED][arm]["answers"][str(OUTCOME)][ending]) for ending in WORDS] for arm in ("base", "sft")
    ]
    rows = [
        [name.removeprefix("key "), str(n), *(f"{one[name][0]:.1f}" for of in of_arms for one in of)]
        for name, (_, n) in of_arms[0][0].items()
        if name.startswith(("all", "key"))
    ]
    heads = [f"{model} {words}" for model in ("`built-in`:", "`-instruct`:") for words in WORDS.values()]
    return markdown_table(["right letter", "questions", *heads], rows)


def texts(study: Study) -> dict[str, str]:
    """Place -> its text."""
    found = reading(study)
    return {
        "study": compact(tables(study)),
        "headline": headline(found),
        "finding": finding(found),
        "control": control(found),
        "tv": tv(found),
        "repair": repair(found),
        "shipped": compact(_shipped(study)),
    }


# The figure


def write_figure(study: Study, folder: Path) -> None:
    """Draws every model's accuracy by what is appended: `study-light.svg`, `-dark`, and both `-narrow-` for phones."""
    for name, columns in (("study", len(PRIMARY)), ("study-narrow", 3)):
        with figure_style(svg_fonttype="none", font_size=8, axes_titlesize=8, figure_titlesize=8):
            light = folder / f"{name}-light.svg"
            _drawn(reading(study), columns).savefig(light, metadata={"Date": None}, transparent=True)
        (folder / f"{name}-dark.svg").write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")


def _drawn(found: Study, columns: int) -> Figure:
    """A panel for each arm, in which a line joins a model's accuracies with few and many masks; dots stand apart."""
    n_rows = -(-len(PRIMARY) // columns)
    figure = Figure(figsize=(1.3 * columns + 0.2, 1.9 * n_rows + 0.5))
    figure.set_layout_engine("constrained")
    title = (
        f"{len(found)} small models. Orange models collapse: with 200 masks, they score more than {COLLAPSE:.0f} "
        "points lower than before fine-tuning. Two more losses (CE and CE + TV) try to repair this. Registered verdict "
        f"on EOS padding: {primary(found)['EOS padding'][3]}."
    )
    figure.suptitle(fill(title, width=21 * columns, break_on_hyphens=False), x=0.01, horizontalalignment="left")
    grid = figure.subplots(n_rows, columns, sharey=True, squeeze=False)
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy (%)")
    panels = list(grid.flat)
    for axes, arm in zip(panels, PRIMARY, strict=False):
        of_arm = [models for models in found.values() if arm in models]
        losses = [percent(models["base"], "200") - percent(models[arm], "200") for models in of_arm]
        for models, loss in zip(of_arm, losses, strict=True):
            values = [percent(models[arm], ending) for ending in ENDINGS_DRAWN]
            look: dict[str, Any] = {"color": COLOURS[1], "zorder": 3} if loss > COLLAPSE else {"color": COLOURS[0]}
            look |= {"marker": "o", "markersize": 2.5, "alpha": 0.7, "markeredgewidth": 0}
            axes.plot(values[:2], linewidth=0.8, **look)
            axes.plot(values, linestyle="none", **look)
        axes.set_title(DRAWN[arm])
        axes.set_xticks(range(len(ENDINGS_DRAWN)), [WORDS[ending].replace(" ", "\n") for ending in ENDINGS_DRAWN])
        axes.set_xlim(-0.25, len(ENDINGS_DRAWN) - 0.75)
        axes.set_ylim(-3, 103)
        axes.grid(visible=False, axis="x")
        n_collapsed = sum(loss > COLLAPSE for loss in losses)
        words = "the reference" if arm == "base" else f"{n_collapsed} of {len(losses)} collapse"
        axes.set_xlabel(words, color=COLOURS[1] if n_collapsed else COLOURS[6])
    for axes in panels[len(PRIMARY) :]:
        axes.set_axis_off()
    return figure


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the documentation")
    parser.add_argument("--add", type=Path, metavar="FOLDER", help="add its files seed-N.json to the committed answers")
    arguments = parser.parse_args()
    if arguments.add:
        add_answers(arguments.add)
    study = read_study()
    found = texts(study)
    if arguments.write:
        for place, documents in PLACES.items():
            for document in documents:
                replace_table(document, place, found[place])
        write_figure(study, ROOT / "docs/figures")
        for name, text in csv_files(study).items():
            (ANSWERS.parent / name).write_text(text, encoding="utf-8")
    else:
        print(*found.values(), sep="\n\n")


if __name__ == "__main__":
    main()
