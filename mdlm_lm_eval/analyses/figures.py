"""Figures of the analyses as PNG and SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mdlm_lm_eval.analyses.report import Row
from mdlm_lm_eval.results.figure_style import COLOURS, COLUMN_WIDTH, MARKERS, figure_style, log_axis, save_figure
from mdlm_lm_eval.results.statistics import wilson

# Text stays text in SVGs, so that it can be searched and copied.
_styled = figure_style(svg_fonttype="none")


@_styled
def draw_examples(summary: Sequence[Row], path: Path, model: str) -> None:
    """E3: normalised gradient norms of in-context examples against their places in the prompt."""
    figure = Figure(figsize=(COLUMN_WIDTH, 2.8), layout="constrained")
    axes = figure.subplots()
    for kind, colour, marker in zip(("relevant", "distractor"), COLOURS, MARKERS, strict=False):
        rows = [row for row in summary if row["example"] == kind]
        _line(axes, rows, "place", "gradient", colour, marker, kind)
    axes.set_xlabel("place of the in-context example in the prompt")
    axes.set_ylabel("gradient norm (largest = 1)")
    axes.set_title(_title(model, summary))
    axes.legend()
    save_figure(figure, path)


@_styled
def draw_confidence(summary: Mapping[str, Sequence[Row]], path: Path, model: str) -> None:
    """E13: confidence and entropy at the answer mask against the mask count."""
    figure = Figure(figsize=(2 * COLUMN_WIDTH, 2.6), layout="constrained")
    panels = figure.subplots(1, 2)
    labels = {"confidence": "probability of the greedy token", "entropy": "entropy (nats)"}
    for axes, (value, label) in zip(panels, labels.items(), strict=True):
        rows = summary[value]
        _line(axes, rows, "n_masks", value, COLOURS[0], MARKERS[0], model)
        log_axis(axes, [row["n_masks"] for row in rows])
        axes.set_xlabel("masks on the canvas")
        axes.set_ylabel(label)
    figure.suptitle(_title(model, summary["confidence"]))
    save_figure(figure, path)


@_styled
def draw_shots_against_masks(points: Sequence[Row], models: Sequence[Row], path: Path) -> None:
    """E12: a point for each task, a colour for each model, and a cross of 95% bands at the mean over tasks."""
    figure = Figure(figsize=(COLUMN_WIDTH, 3.0), layout="constrained")
    axes = figure.subplots()
    for n, model in enumerate(models):
        colour, marker = COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]
        chosen = [point for point in points if point["model"] == model["model"]]
        r = "r undefined" if model["pearson_r"] is None else f"r = {model['pearson_r']:.2f}"
        gains, losses = ([100 * point[name] for point in chosen] for name in ("gain", "loss"))
        # Overlapping tasks look darker.
        axes.scatter(gains, losses, s=18, alpha=0.5, color=colour, marker=marker, label=f"{model['model']}: {r}")
        bands = {of: model[band] and 100 * model[band] for of, band in (("xerr", "gain_band"), ("yerr", "loss_band"))}
        axes.errorbar(100 * model["gain"], 100 * model["loss"], color=colour, linewidth=1, **bands)
    first = points[0]
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"gain from {first['few_shots']} to {first['many_shots']} shots (points)")
    axes.set_ylabel(f"loss from {first['few_masks']} to {first['many_masks']} masks (points)")
    # Above the panel, so that its markers are not mistaken for tasks.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    save_figure(figure, path)


@_styled
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


def _line(axes: Axes, rows: Sequence[Row], x: str, y: str, colour: str, marker: str, label: str) -> None:
    """A line, with its 95% band over tasks if there are several tasks."""
    at = [row[x] for row in rows]
    axes.plot(at, [row[y] for row in rows], color=colour, marker=marker, label=label)
    if all(row["band"] is not None for row in rows):
        low: list[Any] = [row[y] - row["band"] for row in rows]
        high: list[Any] = [row[y] + row["band"] for row in rows]
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)


def _title(model: str, summary: Sequence[Row]) -> str:
    n_tasks = max(row["tasks"] for row in summary)
    return model if n_tasks == 1 else f"{model}, mean over {n_tasks} tasks with its 95% band"
