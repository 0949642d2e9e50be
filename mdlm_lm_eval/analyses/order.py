"""The order in which a model fills its answers, and the calibration of its confidence at filling.

Reads results with `trace=true`. Calibration also needs the samples that `--log_samples` writes beside them.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mdlm_lm_eval.analyses.report import Row, over_tasks, read_results
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.deviations import deviations_of, listed
from mdlm_lm_eval.results.plot import COLOURS, COLUMN_WIDTH, MARKERS, figure_style, save_figure
from mdlm_lm_eval.results.samples import read_scores, samples_path
from mdlm_lm_eval.results.statistics import wilson

BINS = 10  # of confidence
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def read_orders(paths: Iterable[Path]) -> list[Row]:
    """One row for each traced answer in the result files at or below `paths`, with the values of `order_of`.

    `model` also names the adapter and the setting. `correct` is the exact match of the question's sample, or its first
    metric; None without samples, and for a question that was asked several times. Raises OptionError if no answer was
    traced.
    """
    rows: list[Row] = []
    for file in read_results(paths):
        for task, recorded in file.mdlm["tasks"].items():
            # Of a question that was asked several times, the sample has one score for all answers.
            is_told = "trace" in recorded and file.tasks[task].repeats == 1
            samples = samples_path(file.place, task) if is_told else None
            metrics = read_scores(samples) if samples else {"": {}}
            metric = min(metrics, key=lambda name: not name.startswith("exact_match"))
            right = {question[0]: score for question, score in metrics[metric].items()}
            setting = listed(deviations_of(file, file.tasks[task]))
            model = " ".join(filter(None, (file.model, file.adapter, setting)))
            for trace in recorded.get("trace", ()):
                facts = {"model": model, "task": task, "doc_id": trace["doc_id"], "correct": right.get(trace["doc_id"])}
                rows += [facts | order_of(trace)] if "steps" in trace else []
    if not rows:
        raise OptionError("no traced answer was found; evaluate with trace=true among the model arguments")
    return rows


def order_of(trace: dict[str, Any]) -> Row:
    """Measures of one answer, from its recorded trace.

    tau: Kendall's tau between the passes that filled the tokens and left to right, over pairs of tokens from different
        passes; None if one pass filled all.
    number_first: whether the last number was complete before half of the tokens before it were filled; None without a
        number, or without tokens before it.
    confidence: the product of the tokens' probabilities when they were filled, the confidence in the whole answer.
    edits: number of rewritten tokens.
    """
    steps, ends, edits = ([*map(int, trace[name].split())] for name in ("steps", "ends", "edits"))
    signs = [(later > earlier) - (later < earlier) for earlier, later in combinations(steps, 2)]
    found = [*_NUMBER.finditer(trace["text"])]
    start, stop = found[-1].span() if found else (0, 0)
    before = [step for step, end in zip(steps, ends, strict=True) if end <= start]
    number = [step for step, begin, end in zip(steps, [0, *ends], ends, strict=False) if begin < stop and end > start]
    return {
        "tokens": len(steps),
        "tau": sum(signs) / sum(map(abs, signs)) if any(signs) else None,
        "number_first": float(max(number) < median(before)) if before and number else None,
        "confidence": math.prod(map(float, trace["confidence"].split())),
        "edits": sum(map(bool, edits)),
    }


def order_by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The mean over tasks of `tau` and `number_first`, and the bins of `calibration` over answers."""
    summary = {}
    for name in ("tau", "number_first"):
        known = [row for row in rows if row[name] is not None]
        summary[name] = over_tasks(known, name, ["model"]) if known else []
    return summary | {"calibration": calibration([row for row in rows if row["correct"] is not None])}


def calibration(rows: Sequence[Row]) -> list[Row]:
    """Mean confidence and accuracy of each model's answers, in bins of confidence.

    `error` is the model's expected calibration error: the mean over answers of the difference between the two in the
    answer's bin.
    """
    if not rows:
        return []
    frame = pd.DataFrame(rows)[["model", "confidence", "correct"]]
    bins = frame.groupby(["model", (BINS * frame["confidence"]).clip(upper=BINS - 1).astype(int).rename("bin")])
    means = bins.mean().assign(answers=bins.size()).reset_index()
    apart = (means["confidence"] - means["correct"]).abs() * means["answers"]
    error = apart.groupby(means["model"]).sum() / means.groupby("model")["answers"].sum()
    found: list[Row] = means.assign(error=means["model"].map(error)).to_dict("records")
    return found


@figure_style(svg_fonttype="none")  # text stays text, so that it can be searched and copied
def draw_order(rows: Sequence[Row], bins: Sequence[Row], path: Path) -> None:
    """Kendall's tau of single answers with left to right, and their accuracy against their confidence at filling."""
    figure = Figure(figsize=(2 * COLUMN_WIDTH, 2.8), layout="constrained")
    order, calibration = figure.subplots(1, 2)
    for n, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        colour, marker = COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]
        taus = [row["tau"] for row in rows if row["model"] == model and row["tau"] is not None]
        edges, weights = [x / 10 for x in range(-10, 11)], [1 / len(taus) for _ in taus]
        order.hist(taus, edges, weights=weights, histtype="step", color=colour, label=model)
        own = [row for row in bins if row["model"] == model]
        if own:
            sure, right = ([row[name] for row in own] for name in ("confidence", "correct"))
            label = f"calibration error {own[0]['error']:.3f}"
            calibration.plot(sure, right, color=colour, marker=marker, linewidth=1, label=label)
            ends = [wilson(row["correct"], row["answers"]) for row in own]
            calibration.vlines(sure, *zip(*ends, strict=True), color=colour, linewidth=1)
    order.set(xlabel="Kendall's tau of an answer with left to right", ylabel="share of answers")
    order.set_xticks([-1, -0.5, 0, 0.5, 1])
    calibration.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, zorder=0, label="as sure as right")
    calibration.set(xlabel="confidence at filling, product over the answer", ylabel="accuracy")
    for axes in (order, calibration):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    save_figure(figure, path)
