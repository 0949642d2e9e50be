"""The content of a report, computed from the answers of one folder: verdicts, and a section for each experiment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

import pandas as pd
import yaml

from mdlm_leaderboard.templates import sentences
from mdlm_lm_eval.analyses.report import over_tasks
from mdlm_lm_eval.paper.answers import Answers, Condition, Model
from mdlm_lm_eval.paper.evidence import FEW, MANY, MASKS, evidence_of, have_letters
from mdlm_lm_eval.paper.verdict import Kind, Verdict, decide
from mdlm_lm_eval.results.statistics import Interval, correlation_interval, score_of_tasks, t_interval
from mdlm_lm_eval.results.suite import cluster_of

SHARE_NAMES = {"among_labels": "among letters", "eos": "end of text"}


@dataclass(frozen=True)
class Point:
    """A mean over tasks in percent: its interval over the questions, and the band over the tasks, as in the paper."""

    mean: float
    questions: Interval
    tasks: Interval
    n: int


@dataclass(frozen=True)
class Curve:
    """One line of a figure. `share` is "" for the accuracy as decoded."""

    label: str
    share: str
    points: Mapping[Any, Point]


@dataclass(frozen=True)
class Experiment:
    """An entry of `experiments.yaml`, which says what the fields mean."""

    name: str
    title: str
    figure: str
    x: str = ""
    x_label: str = ""
    series: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    shares: Sequence[str] = ()
    at_zero: Mapping[str, Any] | None = None
    analysis: str = ""
    values: Sequence[str] = ()
    said: str = ""
    differs: str = ""

    def curves(self, model: Model) -> list[Curve]:
        """The lines of a model that was asked at two values of x, or more; without masks, at one."""
        found = []
        least = 2 if model.has_masks or self.x != "masks" else 1
        for label, asked in self._asked(model).items():
            for share in ("", *self.shares):
                if len(asked) < least or (share and not have_letters(model, asked.values())):
                    continue
                points = {x: point(model.answers[asked[x]], share) for x in sorted(asked)}
                of_share = [SHARE_NAMES[share]] if share else []
                words = [label, *of_share] if len(self.series) > 1 or not share else of_share
                found.append(Curve(", ".join(words), share, points))
        return found

    def _asked(self, model: Model) -> dict[str, dict[Any, Condition]]:
        """Label of a line -> x -> the condition that a model was asked under."""
        bases = {label: Condition(**{**self.base, **own}) for label, own in self.series.items()}
        if not model.has_masks:
            without = {replace(one, masks=0, share=None, steps=1, order=""): label for label, one in bases.items()}
            bases = {label if len(without) > 1 else "no masks": one for one, label in without.items()}
        found: dict[str, dict[Any, Condition]] = {}
        for label, base in bases.items():
            values = {one: getattr(one, self.x) for one in model.answers}
            found[label] = {
                x: one for one, x in values.items() if x is not None and replace(base, **{self.x: x}) == one
            }
            if self.at_zero and (first := replace(base, **self.at_zero)) in model.answers:
                found[label][0] = first
        return found


@dataclass(frozen=True)
class Section:
    """The numbers of an experiment in a table, and in a figure: the curves of each model by title, or its frames.

    frames: what is drawn of an analysis: value -> title -> its table.
    """

    experiment: Experiment
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    frames: Mapping[str, Mapping[str, pd.DataFrame]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A model with its verdicts, in the order of the claims."""

    model: Model
    verdicts: Mapping[str, Verdict]

    @property
    def unfinished(self) -> str:
        """The number of planned cells without a result, and of the reports made before the end; "" without either."""
        plan = self.model.plan
        if plan is None or not (plan.missing or plan.looks):
            return ""
        missing = f"{len(plan.missing)} of {len(plan.content['cells'])} cells have no result yet. " * bool(plan.missing)
        return f"{missing}Reports made before the end of the run: {len(plan.looks)}."

    @property
    def left_out(self) -> Mapping[str, Sequence[str]]:
        """Why planned cells could not run -> their names."""
        found: dict[str, list[str]] = {}
        for cell, why in (self.model.plan.content["left_out"] if self.model.plan else {}).items():
            found.setdefault(why, []).append(cell)
        return found

    @property
    def distance(self) -> Mapping[Kind, Sequence[str]]:
        """Kind of verdict -> the places of the question whose claim about distance has it."""
        found: dict[Kind, list[str]] = {}
        for place in ("right", "left", "middle"):
            if one := self.verdicts.get(f"locality_{place}"):
                found.setdefault(one.kind, []).append(place)
        return found

    @property
    def kinds(self) -> Sequence[tuple[str, int]]:
        """The kinds of verdicts, each with their number, the most frequent first."""
        return Counter(one.in_short for one in self.verdicts.values()).most_common()

    @property
    def findings(self) -> list[str]:
        """What was found about masks and about distance, in sentences."""

        def percent(n_masks: int, share: str = "") -> float:
            return point(self.model.answers[replace(MASKS, masks=n_masks)], share).mean

        return sentences("report", judged=self, percent=percent, few=FEW, many=MANY)


def judged(models: Sequence[Model]) -> list[Judged]:
    """The verdicts on each model. An adapter is judged against its own base."""

    def verdicts(model: Model) -> dict[str, Verdict]:
        base = next((one for one in models if model.adapter and one.is_base_of(model)), None)
        declared = model.plan.content["declared"] if model.plan else ()
        return decide(evidence_of(model, base), declared, verdicts(base) if base else None)

    return [Judged(model, verdicts(model)) for model in models]


def published_effect(verdict: Verdict, model: Model) -> tuple[str, float, float] | None:
    """The paper's effect: its words, and the ends of its range over models; None if the paper states none."""
    of_models = published().get(verdict.claim.name)
    if not of_models:
        return None
    of_model = of_models.get(model.name.rpartition("/")[2])
    values = [of_model] if of_model is not None and not model.adapter else [*of_models.values()]
    low, high = float(min(values)), float(max(values))
    words = f"{low:g}" if low == high else f"{low:g} to {high:g} (other models)"
    return words, low, high


def sections(models: Sequence[Model]) -> list[Section]:
    """The sections with an answer, in the paper's order."""
    found = []
    for line in yaml.safe_load(files("mdlm_lm_eval.paper").joinpath("experiments.yaml").read_text("utf-8")):
        one = Experiment(**line)
        if one.analysis:
            found += _analyses(one, models)
        elif one.series:
            curves = {model.title: own for model in models if (own := one.curves(model))}
            found += [Section(one, *_table_of(curves), curves)] if curves else []
        else:
            found += _gains_and_losses(one, models)
    return found


@cache
def published() -> dict[str, Any]:
    """Claim -> model -> the effect that the paper states."""
    return dict(yaml.safe_load(files("mdlm_lm_eval.paper").joinpath("published.yaml").read_text("utf-8")))


def point(of_tasks: Mapping[str, Answers], share: str = "") -> Point:
    """The accuracy or another share of the answers to some tasks."""
    found = [float(one.are(share).mean()) if share else one.accuracy for one in of_tasks.values()]
    n = [one.n for one in of_tasks.values()]
    questions = score_of_tasks(found, n).interval.scaled(100)
    return Point(100 * fmean(found), questions, t_interval([100 * one for one in found]), sum(n))


def _table_of(curves: Mapping[str, Sequence[Curve]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the numbers that a figure draws: a row for each line.

    Degradation is the paper's measure: the largest accuracy minus the smallest, over the largest.
    """
    xs = sorted({x for own in curves.values() for curve in own for x in curve.points})
    rows = []
    for title, own in curves.items():
        for curve in own:
            cells = [curve.points[x].questions.in_words if x in curve.points else "–" for x in xs]
            means = [one.mean for one in curve.points.values()]
            is_known = not curve.share and max(means) > 0
            fallen = f"{100 * (max(means) - min(means)) / max(means):.1f}" if is_known else "–"
            rows.append([f"{title}, {curve.label}" if len(curves) > 1 else curve.label, *cells, fallen])
    return ["percent", *map(str, xs), "degradation"], rows


def _analyses(one: Experiment, models: Sequence[Model]) -> list[Section]:
    """The section of a gradient analysis or of confidence: means over tasks."""
    rows_of = {model.title: model.analyses[one.analysis]["rows"] for model in models if one.analysis in model.analyses}
    if not rows_of:
        return []
    frames = {
        value: {title: pd.DataFrame(over_tasks(rows, value, [one.x])) for title, rows in rows_of.items()}
        for value in one.values
    }
    first = next(iter(next(iter(frames.values())).values()))
    rows = [
        [", ".join([title, value][: len(frames)]), *(_with_band(row, value) for row in frame.to_dict("records"))]
        for value, of_models in frames.items()
        for title, frame in of_models.items()
    ]
    return [Section(one, ["", *map(str, first[one.x])], rows, frames=frames)]


def _with_band(row: Mapping[Any, Any], value: str) -> str:
    band = row.get("band")
    return f"{row[value]:.3f}" + ("" if band is None or pd.isna(band) else f" ± {band:.3f}")


def _gains_and_losses(one: Experiment, models: Sequence[Model]) -> list[Section]:
    """E12: what each task gains from 5 to 25 examples, and loses from 1 to 200 masks, in points."""
    frames: dict[str, pd.DataFrame] = {}
    rows = []
    for model in models:
        points = []
        for asks in ("mdlm_context", "mdlm_single_token"):
            cells = ((1, 5), (1, 25), (MANY, 25))
            conditions = [Condition(asks, masks=masks, relevant=shots, distractors=0) for masks, shots in cells]
            few, many, masked = (model.answers.get(each, {}) for each in conditions)
            for task in sorted(few.keys() & many.keys() & masked.keys()):
                gain = 100 * (many[task].accuracy - few[task].accuracy)
                points.append((task, gain, 100 * (many[task].accuracy - masked[task].accuracy)))
        if not points:
            continue
        frames[model.title] = frame = pd.DataFrame(points, columns=["task", "gain", "loss"])
        r = frame["gain"].corr(frame["loss"], min_periods=3)
        ends = correlation_interval(r, frame["task"].map(cluster_of).nunique())
        in_words = f"{r:.2f} ({ends[0]:.2f} to {ends[1]:.2f})" if ends else f"{r:.2f}".replace("nan", "undefined")
        means = (t_interval(frame[name]).in_words for name in ("gain", "loss"))
        rows.append([model.title, *means, in_words, str(len(frame))])
    if not rows:
        return []
    head = ["", "gain, points", "loss, points", "Pearson's r", "tasks"]
    return [Section(one, head, rows, frames={"loss": frames})]
