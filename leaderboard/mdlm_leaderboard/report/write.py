"""Writes a report: a static page, Markdown, JSON, figures, and the block of results for a model card."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from mdlm_leaderboard.report import figures
from mdlm_leaderboard.report.content import Judged, Section, judged, point, published_effect, sections
from mdlm_leaderboard.templates import render, render_markdown
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.answers import Model, read_models
from mdlm_lm_eval.paper.evidence import mask_counts
from mdlm_lm_eval.paper.verdict import digest
from mdlm_lm_eval.results.figure_style import figure_style, save_light_and_dark
from mdlm_lm_eval.results.files import replaced_content
from mdlm_lm_eval.results.suite import current_version


def write_report(results: Path, output: Path) -> list[Judged]:
    """Writes the report of all answers to the few-shot suite under `results` into `output`.

    Raises OptionError if no model answered the suite.
    """
    models, refused = read_models(results)
    if not models:
        reasons = "".join(f"\n  {path}: {reason}" for path, reason in refused.items())
        raise OptionError(f"{results} holds no answers of all tasks of the few-shot suite{reasons}")
    return write_report_of(models, refused, output)


@figure_style(svg_fonttype="none")  # text that can be searched and copied, in small files
def write_report_of(models: Sequence[Model], refused: Mapping[str, str], output: Path) -> list[Judged]:
    """Writes the report of some models. What was there stays until everything is made."""
    for plan in {model.plan.path: model.plan for model in models if model.plan}.values():
        plan.look(datetime.now(UTC).isoformat(timespec="seconds"))
    verdicts, found = judged(models), sections(models)
    with replaced_content(output, "figures") as folder:
        for n, one in enumerate(verdicts):
            if one.verdicts:
                save_light_and_dark(figures.forest(one), folder / f"figures/verdicts-{n}")
        for section in found:
            drawn = figures.curves(section) if section.curves else figures.analysis(section)
            save_light_and_dark(drawn, folder / f"figures/{section.experiment.name}")
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
