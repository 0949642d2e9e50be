"""The board's figure of the suite: the loss to masks. The paper's other figures belong to `report`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mdlm_leaderboard.board import Section
from mdlm_leaderboard.experiments import BY_NAME, NO_MASKS
from mdlm_leaderboard.findings import MOST_LINES, loss_of, mask_lines, one_step, short_name
from mdlm_leaderboard.rows import Curve
from mdlm_leaderboard.scores import CHANCE
from mdlm_lm_eval.results.figure_style import COLUMN_WIDTH, MARKERS, figure_style, log_axis, on_dark, save_figure
from mdlm_lm_eval.results.files import write_whole

_GREY = "#767676"
_LEAST_SPAN = 10  # percentage points of the axis; a shorter axis would magnify noise
_LEGEND_LINE = 0.15  # inches
_LABEL, _HALF = 54, 23  # characters of a line in a legend with one column, and with two


@dataclass(frozen=True)
class Line:
    """A curve over mask counts. `name` is the model or recipe whose colour and symbol it has."""

    name: str
    curve: Curve
    label: str


@dataclass(frozen=True)
class Chart:
    """The figure of a section's loss to masks."""

    caption: str
    lines: tuple[Line, ...]

    @property
    def described(self) -> str:
        """The figure in words, for readers who cannot see it."""
        return f"{self.caption} Lines: {'; '.join(line.label for line in self.lines)}."


def save_light_and_dark(figure: Figure, path: Path) -> None:
    """Writes `path` as SVG and PNG, and an SVG for dark mode into the folder `dark` beside them."""
    light, _ = save_figure(figure, path)
    write_whole(path.parent / "dark" / light.name, on_dark(light.read_text(encoding="utf-8")))


@figure_style()
def drawn(chart: Chart, colours: Mapping[str, str]) -> Figure:
    """The figure of a chart. `colours` are those of models and recipes."""
    longest = max(len(words) for line in chart.lines for words in line.label.split("\n"))
    columns = 2 if len(chart.lines) > 3 and longest <= _HALF else 1
    heights = [line.label.count("\n") + 1 for line in chart.lines]
    legend = _LEGEND_LINE * (sum(heights) / columns + 2)
    figure = Figure(figsize=(COLUMN_WIDTH, 0.6 * COLUMN_WIDTH + legend), layout="constrained")
    axes = figure.subplots()
    for line in chart.lines:
        look: dict[str, Any] = {"color": colours[line.name], "label": line.label}
        percents = [100 * one.mean for one in line.curve.values()]
        if NO_MASKS in line.curve:
            axes.axhline(percents[0], **look)
        else:
            n = list(colours).index(line.name)  # names that share a colour have different symbols
            marker = MARKERS[(n + n // len(MARKERS)) % len(MARKERS)]
            style = ":" if len(percents) < 3 else "-"  # nothing was measured between two counts
            axes.plot(list(line.curve), percents, marker=marker, linestyle=style, **look)
            lows, highs = zip(*(one.interval.ends for one in line.curve.values()), strict=True)
            axes.vlines(list(line.curve), lows, highs, color=colours[line.name], linewidth=1)
    low, high = _limits([end for line in chart.lines for one in line.curve.values() for end in one.interval.ends])
    axes.set_ylim(low, high)
    if low < CHANCE < high:
        axes.axhline(CHANCE, color=_GREY, linewidth=0.8, linestyle=(0, (5, 3)), label="chance")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    counts = sorted({x for line in chart.lines for x in line.curve if x != NO_MASKS}) or [1, 200]
    log_axis(axes, counts)
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    axes.set_xlabel(BY_NAME["masks"].x_label)
    axes.set_ylabel("accuracy (%)")
    figure.legend(loc="outside lower left", ncols=columns, handlelength=2.6)
    return figure


def _limits(percents: Sequence[float]) -> tuple[float, float]:
    """The bounds of the axis of accuracies, in percent."""
    low, high = min(percents), max(percents)
    margin = max(0.06 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return max(low - margin, -1), min(high + margin, 101)


def headline(section: Section) -> Chart:
    """The chart of the loss to masks: a line per checkpoint, labelled with its loss, those of the finding first."""
    lines, rows = [], mask_lines(section)
    rows += [row for row in one_step(section) if row not in rows and not row.who.adapter][: MOST_LINES - len(rows)]
    for row in rows:
        found = loss_of(row, section)
        seeds = f" ({len(row.seeds)} seeds)" if row.seeds else ""
        cost = f"loss {found.in_words}{'' if found.low is None or found.is_significant else ', not significant'}"
        name = row.who.recipe or row.who.model
        shown = f"+ {name}" if row.who.adapter else short_name(name)
        lines.append(Line(name, row.curve("masks"), fill(f"{shown}{seeds}: {cost}", _LABEL)))
    among = f": {len(rows)} of {len(section.rows)} rows" if len(rows) < len(section.rows) else ""
    return Chart(f"Accuracy by appended masks{among}.", tuple(lines))
