"""Writes a report: a static page, Markdown, JSON, figures, and the block of results for a model card.

The figures are a forest plot of the verdicts, and the paper's figures with a panel for each model.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mdlm_leaderboard.report import Curve, Judged, Section, judged, point, published_effect, sections
from mdlm_leaderboard.scores import CHANCE
from mdlm_leaderboard.templates import render, render_markdown
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.answers import Model, read_models
from mdlm_lm_eval.paper.evidence import mask_counts
from mdlm_lm_eval.paper.verdict import Kind, Verdict, digest
from mdlm_lm_eval.results import plot
from mdlm_lm_eval.results.files import replaced_content
from mdlm_lm_eval.results.suite import SPELLING_ALONE, current_version

_GREY = "#767676"
_KIND_COLOURS: Mapping[Kind, str] = {
    "reproduced": plot.COLOURS[0],
    "not reproduced": plot.COLOURS[1],
    "the opposite": plot.COLOURS[3],
}
_LINE = 0.24  # inches of a claim in the forest plot
_SHARE_DASHES = {"": "-", "among_labels": (0, (4, 1.2)), "eos": (0, (1, 1))}
_PANELS = 3  # in a row
_LETTERS, _HANDLE = 19, 8  # of a legend: letters an inch, and those that a line's symbol takes
#: Value of an analysis -> its axis.
_VALUES = {
    "gradient": "gradient norm (largest = 1)",
    "confidence": "confidence",
    "entropy": "entropy (nats)",
    "loss": "loss to 200 masks (points)",
}
_BY_COUNT = ("masks", "dots", "n_masks")


def write_report(results: Path, output: Path) -> list[Judged]:
    """Writes the report of all answers to the few-shot suite under `results` into `output`.

    Raises OptionError if no model answered the suite.
    """
    models, refused = read_models(results)
    if not models:
        reasons = "".join(f"\n  {path}: {reason}" for path, reason in refused.items())
        raise OptionError(f"{results} holds no answers of all tasks of the few-shot suite{reasons}")
    return write_report_of(models, refused, output)


@plot.figure_style(svg_fonttype="none")  # text that can be searched and copied, in small files
def write_report_of(models: Sequence[Model], refused: Mapping[str, str], output: Path) -> list[Judged]:
    """Writes the report of some models. What was there stays until everything is made."""
    for plan in {model.plan.path: model.plan for model in models if model.plan}.values():
        plan.look(datetime.now(UTC).isoformat(timespec="seconds"))
    verdicts, found = judged(models), sections(models)
    with replaced_content(output, "figures") as folder:
        for n, one in enumerate(verdicts):
            if one.verdicts:
                plot.save_light_and_dark(_forest(one), folder / f"figures/verdicts-{n}")
        for section in found:
            drawn = _curves(section) if section.curves else _analysis(section)
            plot.save_light_and_dark(drawn, folder / f"figures/{section.experiment.name}")
        content: dict[str, Any] = {
            "verdicts": verdicts,
            "sections": found,
            "refused": refused,
            "digest": digest(),
            "suite": current_version(),
            "exp": math.exp,
            "published": published_effect,
            "dates": sorted(file.date for model in models for file in model.files if file.date),
        }
        render("report", folder / "index.html", styles=("page",), **content)
        (folder / "report.md").write_text(render_markdown("report", **content), encoding="utf-8")
        as_json = json.dumps(_as_json(verdicts, found), indent=1, allow_nan=False)
        (folder / "report.json").write_text(f"{as_json}\n", encoding="utf-8")
        card = yaml.safe_dump(model_index(models), sort_keys=False, allow_unicode=True)
        (folder / "model-index.yaml").write_text(card, encoding="utf-8")
    return verdicts


def model_index(models: Sequence[Model]) -> dict[str, Any]:
    """The results of a Hugging Face model card: accuracies by mask count. Each metric names its mask count."""
    entries = []
    for model in models:
        metrics = [
            {"type": "exact_match", "name": f"{n} masks, {found.n} questions", "value": round(found.mean, 2)}
            for n, found in ((n, point(model.answers[one])) for n, one in mask_counts(model).items())
        ]
        dataset = {"type": "mdlm_context", "name": f"Few-shot suite {current_version()} (mdlm_context)"}
        results = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}
        entries.append({"name": model.title, "results": [results] if metrics else []})
    return {"model-index": entries}


def _as_json(verdicts: Sequence[Judged], found: Sequence[Section]) -> dict[str, Any]:
    return {
        "claims_digest": digest(),
        "suite": current_version(),
        "models": [
            {
                "name": one.model.title,
                "setting": one.model.setting,
                "findings": one.findings,
                "unfinished": one.unfinished,
                "verdicts": {name: asdict(verdict) for name, verdict in one.verdicts.items()},
            }
            for one in verdicts
        ],
        "experiments": {
            section.experiment.name: {
                "title": section.experiment.title,
                "figure": section.experiment.figure,
                "curves": {title: [asdict(curve) for curve in own] for title, own in section.curves.items()},
                "table": [list(section.head), *map(list, section.rows)],
            }
            for section in found
        },
    }


# Figures


@plot.figure_style()
def _forest(judged: Judged) -> Figure:
    """A line for each claim: effect, interval, the smallest effect that counts, the paper's, and the verdict."""
    of_scale = {
        scale: [one for one in judged.verdicts.values() if one.claim.scale == scale] for scale in ("points", "ratio")
    }
    shown = {scale: found for scale, found in of_scale.items() if found}
    heights = [len(found) + 1.2 for found in shown.values()]
    figure = Figure(figsize=(2 * plot.COLUMN_WIDTH, _LINE * sum(heights) + 0.9), layout="constrained")
    panels = figure.subplots(len(shown), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (scale, found) in zip(panels, shown.items(), strict=True):
        _draw_forest(axes, found, judged, scale)
    handles, labels = panels[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=3)
    return figure


def _draw_forest(axes: Axes, verdicts: Sequence[Verdict], judged: Judged, scale: str) -> None:
    def shown(effect: float) -> float:
        return effect if scale == "points" else math.exp(effect)

    for n, one in enumerate(verdicts):
        colour = _KIND_COLOURS.get(one.kind, _GREY)
        axes.plot([shown(one.low), shown(one.high)], [n, n], color=colour, linewidth=1.6)
        label = "this model, with the test's interval"
        axes.plot([shown(one.effect)], [n], marker="s", markersize=5, color=colour, label=label)
        delta = shown(one.claim.delta)
        axes.plot([delta, delta], [n - 0.32, n + 0.32], color="#1a1a1a", linewidth=1, label="smallest that counts")
        if paper := published_effect(one, judged.model):
            _, low, high = paper
            axes.plot([low, high], [n - 0.2, n - 0.2], color=plot.COLOURS[2], linewidth=1)
            axes.plot([low, high], [n - 0.2] * 2, "D", markersize=3, color=plot.COLOURS[2], label="paper")
        axes.annotate(one.in_short, (1.02, n), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    axes.axvline(0 if scale == "points" else 1, color=_GREY, linewidth=0.8)
    axes.set_yticks(range(len(verdicts)), [one.claim.title for one in verdicts])
    axes.set_ylim(len(verdicts) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    if scale == "ratio":
        plot.log_axis(axes)
        axes.set_xlabel("ratio of gradients; right of 1 as in the paper")
    else:
        axes.set_xlabel("effect in points of accuracy; right of 0 as in the paper")


@plot.figure_style()
def _curves(section: Section) -> Figure:
    """An experiment's accuracies: a panel for each model. Bands are over tasks, strokes over questions."""
    columns = min(len(section.curves), _PANELS)
    rows = math.ceil(len(section.curves) / columns)
    longest = max(len(own) for own in section.curves.values())
    width = plot.COLUMN_WIDTH if columns == 1 else 0.75 * plot.COLUMN_WIDTH * columns
    figure = Figure(figsize=(width, 0.6 * plot.COLUMN_WIDTH * rows + 0.15 * (longest + 1)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    panels = [*grid.flat]
    for axes, (title, own) in zip(panels, section.curves.items(), strict=False):
        for n, curve in enumerate(own):
            _draw_curve(axes, curve, n)
        axes.axhline(CHANCE, color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        if section.experiment.base.get("asks") == "mdlm_rules":  # readers that know no word are above chance
            axes.axhline(SPELLING_ALONE, color=_GREY, linewidth=0.8, linestyle=(0, (4, 2)))
        if len(section.curves) > 1:
            axes.set_title(title)
        axes.set_ylim(-3, 103)
    of_curves = [[*curve.points] for own in section.curves.values() for curve in own]
    xs = sorted({x for own in of_curves if own != [0] for x in own}) or [1, 200]
    for axes in panels:
        axes.set_visible(bool(axes.lines))
        _scale_x(axes, section.experiment.x_label, xs)
    for axes in grid[-1]:
        axes.set_xlabel(section.experiment.x_label)
    for axes in grid[:, 0]:
        axes.set_ylabel("percent")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    fitting = int(width * _LETTERS / (max(map(len, labels)) + _HANDLE)) or 1
    figure.legend(handles, labels, loc="outside lower left", ncols=min(3, fitting, len(labels)))
    return figure


def _draw_curve(axes: Axes, curve: Curve, n: int) -> None:
    """The `n`th line of a panel."""
    xs, points = [*curve.points], curve.points.values()
    of_share: dict[str, Any] = {"color": plot.COLOURS[n % len(plot.COLOURS)], "linestyle": _SHARE_DASHES[curve.share]}
    if xs == [0]:  # without masks
        axes.axhline(next(iter(points)).mean, label=curve.label, **of_share)
        return
    axes.plot(
        xs, [one.mean for one in points], marker=plot.MARKERS[n % len(plot.MARKERS)], label=curve.label, **of_share
    )
    if not curve.share:
        lows, highs = zip(*(one.tasks.ends for one in points), strict=True)
        axes.fill_between(xs, lows, highs, color=plot.COLOURS[n], alpha=0.12, linewidth=0)
    axes.vlines(xs, *zip(*(one.questions.ends for one in points), strict=True), color=plot.COLOURS[n], linewidth=1)


def _scale_x(axes: Axes, label: str, xs: Sequence[float]) -> None:
    if label in _BY_COUNT and min(xs) > 0:
        plot.log_axis(axes, [1, 2, 5, 10, 20, 50, 100, 200])
        axes.set_xlim(min(xs) / 1.15, max(xs) * 1.15)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))


@plot.figure_style()
def _analysis(section: Section) -> Figure:
    """An analysis' means over tasks with their bands: a panel for each value, with a line or points for each model."""
    width, n_models = plot.COLUMN_WIDTH * len(section.frames), max(map(len, section.frames.values()))
    figure = Figure(figsize=(width, 0.65 * plot.COLUMN_WIDTH + 0.15 * n_models), layout="constrained")
    panels = figure.subplots(1, len(section.frames), squeeze=False)[0]
    for axes, (value, frames) in zip(panels, section.frames.items(), strict=True):
        for n, (title, frame) in enumerate(frames.items()):
            look: dict[str, Any] = {"color": plot.COLOURS[n % len(plot.COLOURS)], "label": title}
            look["marker"] = plot.MARKERS[n % len(plot.MARKERS)]
            if section.experiment.name == "e12":  # a point for each task; overlapping ones look darker
                axes.plot(frame["gain"], frame["loss"], linestyle="none", alpha=0.5, **look)
                for line in (axes.axhline, axes.axvline):
                    line(0, color=_GREY, linewidth=0.8, zorder=0)
                continue
            by = section.experiment.x
            bands = frame["band"].astype(float).fillna(0.0)
            if section.experiment.name == "table1":
                places = [place + 0.15 * n for place in range(len(frame))]
                axes.errorbar(places, frame[value], yerr=bands, linestyle="none", capsize=2, **look)
                axes.set_xticks(range(len(frame)), frame[by].str.replace(" ", "\n"))
            else:
                axes.errorbar(frame[by], frame[value], yerr=bands, capsize=1.5, **look)
                if by == "n_masks":
                    plot.log_axis(axes, [1, 2, 5, 10, 20, 50, 100, 200])
        axes.set_xlabel(section.experiment.x_label)
        axes.set_ylabel(_VALUES[value])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left")
    return figure
