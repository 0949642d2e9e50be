"""The board's figures: the loss to masks, and the suite's curves as in the paper's figures."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mdlm_leaderboard.board import ONE_STEP, Board, Curve, Estimate, Row, Section
from mdlm_leaderboard.experiments import BY_NAME, NO_MASKS
from mdlm_leaderboard.findings import loss_of, mask_lines, short_name
from mdlm_leaderboard.scores import CHANCE, USUAL_WORDING
from mdlm_lm_eval.results.figure_style import COLUMN_WIDTH, MARKERS, figure_style, log_axis, on_dark, save_figure
from mdlm_lm_eval.results.files import write_whole

_GREY = "#767676"
_DASHES = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)))
_MOST_MODELS = 7
_LEAST_SPAN = 10  # percentage points of the axis; a shorter axis would magnify noise
_LEGEND_LINE = 0.15  # inches
_LABEL, _HALF = 54, 23  # characters of a line in a legend with one column, and with two
_ORDER = ("steps", "unmasking")  # settings without meaning for one step
# Name, the paper's figures, caption, the experiment of the x axis. One step, unless the caption says otherwise.
_KINDS = (
    ("positions", "1 and 2", "Position of the relevant block and of the question.", "positions"),
    ("masks", "4", "Appended masks.", "masks"),
    ("distractors", "5", "Distractor examples; n is the number of masks.", "distractors"),
    ("dots", "6", "Appended dots (after a fixed slot) or masks (open-ended).", "dots"),
    ("unmasking", "7", "Appended masks and the order of unmasking, in several steps too.", "masks"),
    ("position-by-masks", "8", "Position of the relevant block; n masks.", "positions_by_masks"),
    ("masks-adapters", "9", "Appended masks, with and without adapters.", "masks"),
    ("relevant", "", "Relevant examples; n is the number of masks.", "relevant"),
)


@dataclass(frozen=True)
class Line:
    """A curve. `colour` names the model or recipe whose colour and symbol it has, `dash` the meaning of its dashes.

    A model or recipe has one colour and symbol on the whole page; dashes have their meaning in one chart only.
    """

    colour: str
    dash: str
    curve: Curve
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """The content of one section's figure. `stem` is its path without ending; `paper` names the paper's figures."""

    stem: str
    section: Section
    caption: str
    experiment: str
    lines: tuple[Line, ...]
    paper: str = ""

    @property
    def curves(self) -> set[int]:
        """The identities of its curves."""
        return {id(line.curve) for line in self.lines}

    @property
    def described(self) -> str:
        """The figure in words, for readers who cannot see it."""
        return f"{self.caption} Lines: {'; '.join(line.label for line in self.lines)}."


def charts_of(board: Board, others: Sequence[Chart] = ()) -> list[Chart]:
    """Every chart for which a section of the suite has two curves with two points, or one curve with more.

    A chart is left out if another chart, or one of `others`, shows all its curves, or if its masks are those of the
    table beside it. Other wordings of the same questions have no charts, since their scores are in the table
    `Wordings`.
    """
    charts = []
    suite = [one for one in board.sections if one.is_suite]
    usual = [one for one in suite if replace(one.setting, **USUAL_WORDING) == one.setting]
    for n, section in enumerate(usual or suite):
        slug = "-".join(re.findall(r"[a-z0-9]+", section.title.lower()))[:60]
        points: Counter[str] = Counter()
        for row in section.rows:
            points[row.who.model] += sum(map(len, row.curves.values()))
        shown = {model for model, _ in points.most_common(_MOST_MODELS)}
        rows = [row for row in section.rows if row.who.model in shown]
        for name, paper, caption, experiment in _KINDS:
            found = _lines(name, experiment, rows)
            lines = [line for line in found if len(line.curve) > 1 or NO_MASKS in line.curve]
            if experiment == "masks" and all(set(line.curve) <= set(section.pair) for line in lines):
                continue
            if any(len(line.curve) > (1 if len(lines) > 1 else 2) for line in lines):
                caption = f"Accuracy by {caption[0].lower()}{caption[1:]}"
                stem = f"figures/{n + 1}-{slug}/{name}" if n else f"figures/{name}"
                charts.append(Chart(stem, section, caption, experiment, tuple(_labelled(lines)), paper))
    return [
        one
        for one in charts
        if not any(one.curves <= other.curves for other in others)
        and not any(one.curves < other.curves for other in charts)
    ]


def _lines(name: str, experiment: str, rows: Sequence[Row]) -> Iterable[Line]:
    one_step = [row for row in rows if row.who.steps in ONE_STEP]
    plain = [row for row in one_step if not row.who.adapter]
    if name == "dots":
        own = [row for row in plain if len(row.curve("dots")) > 1]
        return [Line(row.who.model, kind, row.curve(kind)) for row in own for kind in ("masks", "dots")]
    if name == "unmasking":
        own = [row for row in rows if not row.who.adapter and len(row.curve("masks")) > 1]
        count = Counter(row.who.model for row in own)
        return [Line(row.who.model, _told(row), row.curve("masks")) for row in own if count[row.who.model] > 1]
    if name == "masks-adapters":
        adapted = {row.who.model for row in one_step if row.who.adapter}
        own = [row for row in one_step if row.who.model in adapted]
        several = len(adapted) > 1
        words = {row.id: ", ".join(filter(None, [row.who.model * several, _told(row, _ORDER)])) for row in own}
        return [Line(row.who.recipe or row.who.model, words[row.id], row.curve("masks")) for row in own]
    return _by_series(experiment, one_step if name == "position-by-masks" else plain)


def _by_series(experiment: str, rows: Iterable[Row]) -> Iterator[Line]:
    for row in rows:
        for series, curve in row.curves_of(experiment):
            words = BY_NAME[experiment].series_words(series) if series != "" else ""
            yield Line(row.who.recipe or row.who.model, ", ".join(filter(None, [words, _told(row, _ORDER)])), curve)


def _told(row: Row, without: Collection[str] = ()) -> str:
    """The settings that distinguish a row from others of its checkpoint, in words."""
    settings = [f"{name}={value}" for name, value in row.settings.items() if name not in without]
    return ", ".join(filter(None, [*settings, row.shown]))


def _labelled(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines, labelled with the parts in which they differ."""
    for line in lines:
        told = [getattr(line, name) for name in ("colour", "dash") if len({getattr(one, name) for one in lines}) > 1]
        label = ", ".join(dict.fromkeys(short_name(text) for text in told if text))
        yield replace(line, label=label or short_name(line.colour))


@figure_style()
def draw_charts(charts: Iterable[Chart], output: Path, colours: Mapping[str, str]) -> None:
    """Writes every chart below `output` as SVG, PNG and dark SVG. `colours` are those of models and recipes."""
    for chart in charts:
        save_light_and_dark(_drawn(chart, colours), output / chart.stem)


def save_light_and_dark(figure: Figure, path: Path) -> None:
    """Writes `path` as SVG and PNG, and an SVG for dark mode into the folder `dark` beside them."""
    light, _ = save_figure(figure, path)
    write_whole(path.parent / "dark" / light.name, on_dark(light.read_text(encoding="utf-8")))


def _drawn(chart: Chart, colours: Mapping[str, str]) -> Figure:
    longest = max(len(words) for line in chart.lines for words in line.label.split("\n"))
    columns = 2 if len(chart.lines) > 3 and longest <= _HALF else 1
    heights = [line.label.count("\n") + 1 for line in chart.lines]
    legend = _LEGEND_LINE * (sum(heights) / columns + 2)
    figure = Figure(figsize=(COLUMN_WIDTH, 0.6 * COLUMN_WIDTH + legend), layout="constrained")
    axes = figure.subplots()
    dashes = list(dict.fromkeys(line.dash for line in chart.lines))
    for line in chart.lines:
        look: dict[str, Any] = {"color": colours[line.colour], "label": line.label}
        look |= {"linestyle": _DASHES[dashes.index(line.dash) % len(_DASHES)]}
        percents = [100 * one.mean for one in line.curve.values()]
        if chart.experiment == "masks" and NO_MASKS in line.curve:
            axes.axhline(percents[0], **look)
        else:
            n = list(colours).index(line.colour)  # names that share a colour have different symbols
            axes.plot(list(line.curve), percents, marker=MARKERS[(n + n // len(MARKERS)) % len(MARKERS)], **look)
            lows, highs = zip(*(_ends(one) for one in line.curve.values()), strict=True)
            axes.vlines(list(line.curve), lows, highs, color=colours[line.colour], linewidth=1)
    low, high = _limits([end for line in chart.lines for one in line.curve.values() for end in _ends(one)])
    axes.set_ylim(low, high)
    if low < CHANCE < high:
        axes.axhline(CHANCE, color=_GREY, linewidth=0.8, linestyle=(0, (1, 2)), label="chance")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    if chart.experiment == "masks":
        counts = sorted({x for line in chart.lines for x in line.curve if x != NO_MASKS}) or [1, 200]
        log_axis(axes, counts)
        axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel(BY_NAME[chart.experiment].x_label)
    axes.set_ylabel("accuracy (%)")
    figure.legend(loc="outside lower left", ncols=columns, handlelength=2.6)
    return figure


def _ends(one: Estimate) -> tuple[float, float]:
    """The ends of an accuracy's interval in percent; twice the accuracy if it has none."""
    found = one.interval
    return (found.mean if found.low is None else found.low, found.mean if found.high is None else found.high)


def _limits(percents: Sequence[float]) -> tuple[float, float]:
    """The bounds of the axis of accuracies, in percent."""
    low, high = min(percents), max(percents)
    margin = max(0.06 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return max(low - margin, -1), min(high + margin, 101)


def headline(section: Section) -> Chart:
    """The chart of the loss to masks: a line per checkpoint, labelled with its loss."""
    lines, rows = [], mask_lines(section)
    for row in rows:
        found = loss_of(row, section)
        seeds = f" ({len(row.seeds)} seeds)" if row.seeds else ""
        cost = f"loss {found.in_words}{'' if found.low is None or found.is_significant else ', not significant'}"
        name = row.who.recipe or row.who.model
        shown = f"+ {name}" if row.who.adapter else short_name(name)
        lines.append(Line(name, "", row.curve("masks"), fill(f"{shown}{seeds}: {cost}", _LABEL)))
    drawn = f": {len(rows)} of {len(section.rows)} rows" if len(rows) < len(section.rows) else ""
    if drawn and rows[-1].who.adapter:
        drawn = f": {short_name(rows[0].who.model)} and its fine-tuning{'s' if len(rows) > 2 else ''}"
    return Chart("figures/headline", section, f"Accuracy by appended masks{drawn}.", "masks", tuple(lines))
