"""Results of the registered study (`REGISTERED.md`): tables, sentences and figure from the committed answers.

python -m training.study_tables            # prints the tables
python -m training.study_tables --write    # puts them into the documentation, and the figure into docs/figures
"""

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mdlm_lm_eval.results.figure_style import COLOURS, figure_style, on_dark
from mdlm_lm_eval.results.markdown import compact, markdown_table, replace_table
from mdlm_lm_eval.results.statistics import LEAST_MODELS, OverModels, holm, over_models
from mdlm_lm_eval.results.suite import SPELLING_ALONE
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
    "shipped": (ROOT / "mdlm_lm_eval/default_model/README.md",),
}
SHIPPED = 19  # the seed of `built-in` and `built-in-instruct`
PRIMARY = [name for name, arm in ARMS.items() if not arm.is_secondary]
SECONDARY = [name for name, arm in ARMS.items() if arm.is_secondary]
#: The two contrasts of the registration, the first arm minus the second.
CONTRASTS = {"EOS padding": ("sft", "sft-masks"), "TV": ("sft-ce-tv", "sft-ce")}
NO_EFFECT = 5.0  # points: a whole interval within these limits means no effect
WORDS = {"2": "2 masks", "200": "200 masks", "dots": "199 dots"}
#: Arm -> its name in the figure.
DRAWN = {
    "base": "base",
    "sft": "SFT, EOS padding\n(LLaDA's)",
    "sft-masks": "SFT, masks\nas padding",
    "sft-ce": "CE only\non SFT",
    "sft-ce-tv": "CE + TV\non SFT",
}
Study = Mapping[int, Mapping[str, Any]]  # seed -> arm -> record of its model


def read_study(path: Path = ANSWERS) -> Study:
    """The committed answers of all seeds."""
    return {int(seed): models for seed, models in json.loads(gzip.decompress(path.read_bytes())).items()}


def add_answers(folder: Path, path: Path = ANSWERS) -> None:
    """Adds the files `seed-N.json` of a folder to the committed answers."""
    new = {seed: models for seed in SEEDS if (models := read_seed(seed, folder))}
    study = dict(sorted({**(read_study(path) if path.exists() else {}), **new}.items()))
    path.write_bytes(gzip.compress(json.dumps(study).encode(), mtime=0))


def reading(study: Study) -> Study:
    """The models that count: the first twenty that read."""
    seeds = [seed for seed, models in study.items() if reads(models)]
    return {seed: study[seed] for seed in seeds[:N_READING]}


def percent(model: Mapping[str, Any], ending: str, measure: str = "as decoded") -> float:
    """The share of a model's answers for which `measure` is true, on the questions of the outcome."""
    return asking.percent(model["answers"][str(OUTCOME)][ending], measure)


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
    """How many models collapse, such as "3 of 20 (3 to 38%)"."""
    low, high = over.collapsed.low, over.collapsed.high
    ends = "" if low is None or high is None else f" ({low:.0f} to {high:.0f}%)"
    return f"{over.n_collapsed} of {len(over.changes)}{ends}"


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


def headline(study: Study) -> str:
    """What EOS padding does, in one sentence."""
    over, predicted, masks, verdict = primary(study)["EOS padding"]
    return (
        f"We fine-tuned {len(over.changes)} small models{_so_far(over)} twice: padding answers with EOS that is "
        "predicted, as LLaDA does, and with masks. With 200 masks, EOS padding changes accuracy by a median of "
        f"{over.median.mean:+.1f} points ({_ends(over)}, {chance(over.p)} before Holm's correction: {verdict}); "
        f"{collapsed(predicted)} lose more than 30 points, and with masks as padding {collapsed(masks)}."
    )


def finding(study: Study) -> str:
    """What EOS padding does, as sentences."""
    over, predicted, masks, verdict = primary(study)["EOS padding"]
    below = sum(one < 0 for one in over.changes)
    effect = {
        "worse": f"costs a median of {-over.median.mean:.1f} points",
        "better": f"wins a median of {over.median.mean:.1f} points",
    }.get(verdict, f"changes accuracy by a median of {over.median.mean:+.1f} points")
    return (
        f"Over {len(over.changes)} models of 1.1 million parameters{_so_far(over)}, padding answers with EOS that is "
        f"predicted, as LLaDA's own fine-tuning does, {effect} with 200 masks, compared with masks as padding "
        f"({_ends(over)}; worse in {below} of {len(over.changes)}, {chance(over.p)} before Holm's correction). "
        f"{collapsed(predicted)} lose more than 30 points; with masks as padding, {collapsed(masks)} do. The "
        f"registered verdict: {verdict}."
    )


def control(study: Study) -> str:
    """How masks and as many dots compare before and after fine-tuning, as a sentence."""
    arms = {"base": "before fine-tuning", "sft": "after SFT with predicted EOS", "sft-masks": "with masks as padding"}
    apart = {words: changes(study, arm, arm, "200", minus=("dots",)) for arm, words in arms.items()}
    parts = (f"{words} {signed(over)} ({chance(over.p)})" for words, over in apart.items())
    return f"200 masks minus 199 dots, median in points: {', '.join(parts)}."


def _so_far(over: OverModels) -> str:
    return f" (so far; {N_READING} are registered)" if len(over.changes) < N_READING else ""


def tv(study: Study) -> str:
    """What TV adds to CE after EOS padding, as a sentence."""
    over, _, _, verdict = primary(study)["TV"]
    return (
        f"CE + TV minus CE only is a median of {over.median.mean:+z.1f} points with 200 masks over "
        f"{len(over.changes)} models ({_ends(over)}; {chance(over.p)}: {verdict})."
    )


def repair(study: Study) -> str:
    """What CE and TV do after EOS padding, as sentences."""
    _, with_tv, without, _ = primary(study)["TV"]
    parts = [tv(study)]
    for arm, words in (("sft-ce", "CE only"), ("sft-ce-tv", "CE + TV")):
        few, many = (changes(study, arm, "sft", ending) for ending in ("2", "200"))
        parts.append(
            f"{words} changes the fine-tuned model by {signed(many)} with 200 masks and by {signed(few)} with 2."
        )
    parts.append(
        f"{collapsed(without)} stay more than 30 points below their bases with CE only, and {collapsed(with_tv)} with "
        "CE + TV."
    )
    return " ".join(parts)


def _ends(over: OverModels) -> str:
    low, high = over.median.low, over.median.high
    return "no interval" if low is None or high is None else f"{low:+.1f} to {high:+.1f}"


# Tables


def tables(study: Study) -> str:
    """The tables of the study as Markdown, each with a line of explanation before it."""
    found = reading(study)
    return "\n\n".join(
        (
            f"{len(study)} seeds were trained; the {len(found)} that read count. Medians over them, in percent of 384 "
            "questions, with the least and the most in brackets:",
            _arms(found),
            "The registered contrasts, in points with 200 masks. A model *collapses* if it is over 30 points below "
            "its base:",
            _primary(found),
        )
    )


def _arms(found: Study) -> str:
    shown = [(ending, "as decoded") for ending in WORDS] + [("200", measure) for measure in list(asking.MEASURES)[1:]]
    rows = []
    for arm in PRIMARY:
        of = [models[arm] for models in found.values() if arm in models]
        cells = ([percent(model, *what) for model in of] for what in shown)
        rows.append([f"`{arm}`", *(f"{median(one):.1f} ({min(one):.0f}…{max(one):.0f})" for one in cells)])
    heads = [WORDS[ending] if measure == "as decoded" else f"200, {measure}" for ending, measure in shown]
    return markdown_table(["arm", *heads], rows)


def _primary(found: Study) -> str:
    rows = []
    for name, (over, first, second, verdict) in primary(found).items():
        pair = " minus ".join(f"`{arm}`" for arm in CONTRASTS[name])
        rows.append([f"{name}: {pair}", signed(over), chance(over.p), collapsed(first), collapsed(second), verdict])
    return markdown_table(["contrast", "median", "sign test", "first collapses", "second collapses", "verdict"], rows)


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
    """Strata of the shipped models, with 2 masks, 200 masks and 199 dots."""
    of_arms = [
        [strata(study[SHIPPED][arm]["answers"][str(OUTCOME)][ending]) for ending in WORDS] for arm in ("base", "sft")
    ]
    rows = [
        [name, str(n), *(f"{one[name][0]:.1f}" for of in of_arms for one in of)]
        for name, (_, n) in of_arms[0][0].items()
        if not name.startswith("examples")
    ]
    heads = [f"{model} {words}" for model in ("`built-in`:", "`-instruct`:") for words in WORDS.values()]
    return markdown_table(["stratum", "questions", *heads], rows)


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
    """Draws every model's accuracy with 200 masks: `study-light.svg`, `-dark`, and both `-narrow-` for phones."""
    for name, width in (("study", 7.4), ("study-narrow", 3.7)):
        with figure_style(font_size=8, legend_fontsize=8, xtick_labelsize=8, ytick_labelsize=8):
            light = folder / f"{name}-light.svg"
            _drawn(reading(study), width).savefig(light, metadata={"Date": None}, transparent=True)
        (folder / f"{name}-dark.svg").write_text(on_dark(light.read_text(encoding="utf-8")), encoding="utf-8")


def _drawn(found: Study, width: float) -> Figure:
    figure = Figure(figsize=(width, 2.9))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for height, arm in enumerate(reversed(PRIMARY)):
        rng = Random(arm)
        for (ending, words), colour, shift in zip(
            WORDS.items(), (COLOURS[6], COLOURS[1], COLOURS[5]), (0.26, 0, -0.26), strict=True
        ):
            values = [percent(models[arm], ending) for models in found.values()]
            heights = [height + shift + 0.07 * rng.uniform(-1, 1) for _ in values]
            axes.plot(values, heights, "o", markersize=3.2, alpha=0.75, color=colour, markeredgewidth=0, label=words)
            axes.plot([median(values)] * 2, [height + shift - 0.12, height + shift + 0.12], color=colour, linewidth=2)
    axes.axvline(SPELLING_ALONE, color="#1a1a1a", linewidth=0.6, linestyle=":", label="spelling alone, among letters")
    axes.set_xlim(-1, 101)
    axes.set_yticks(range(len(PRIMARY)), [DRAWN[arm] for arm in reversed(PRIMARY)])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("percent right; a dot is a model, a bar the median")
    known = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known.keys(), loc="outside upper left", ncols=4 if width > 5 else 2, frameon=False)
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
