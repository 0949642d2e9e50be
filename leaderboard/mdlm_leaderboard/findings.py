"""The board's findings: figures, each with a sentence about its numbers. The paper's figures are in `report_page`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mdlm_leaderboard.board import Board, Section
from mdlm_leaderboard.columns import first_token_share, loss
from mdlm_leaderboard.rows import Curve, Estimate, Row, is_exact
from mdlm_leaderboard.scores import AUTOREGRESSIVE, BENCHMARKS, BY_NAME, CHANCE, NO_MASKS
from mdlm_leaderboard.templates import sentences
from mdlm_lm_eval.results import plot
from mdlm_lm_eval.results.frame import COSTS
from mdlm_lm_eval.results.frontier import TIMES, slack_of
from mdlm_lm_eval.results.names import BUILT_IN
from mdlm_lm_eval.results.statistics import Interval, difference

_ONE_STEP = ("1", AUTOREGRESSIVE)
_MOST_LINES = 7  # in the figure of masks
_MOST_FIGURES = 4  # benchmarks of a table that have figures
_GREY = "#767676"
_LEAST_SPAN = 10  # percentage points of the axis; a shorter axis would magnify noise
_LEGEND_LINE = 0.15  # inches
_LABEL, _HALF = 54, 23  # characters of a line in a legend with one column, and with two


class Finding(NamedTuple):
    """A figure of a section, with the sentence about its numbers.

    title: the benchmark, "" for the suite.
    sentence: "" if there is nothing to say.
    stem: the figure's path without ending.
    shows: its caption.
    described: the figure in words, for readers who cannot see it.
    """

    section: Section
    title: str
    sentence: str
    stem: str
    shows: str
    described: str


class Line(NamedTuple):
    """A curve over mask counts. `name` is the model or recipe whose colour and symbol it has."""

    name: str
    curve: Curve
    label: str


def findings_of(board: Board, folder: Path) -> Iterator[Finding]:
    """The findings of the suite's main table and of each benchmark. Writes their figures into `folder`/figures."""
    found = [row.who for row in board.rows]
    colours = plot.colours_of([*(who.model for who in found), *(who.recipe for who in found if who.adapter)])
    if board.main and (sentence := masks_finding(board.main)):
        caption, lines = headline(board.main)
        caption += " The axis does not begin at 0." if _limits(lines)[0] > 0 else ""
        stem, described = "figures/headline", f"{caption} Lines: {'; '.join(line.label for line in lines)}."
        levels = {"chance": CHANCE}
        if board.main.setting.asks == "mdlm_rules":
            levels["best score by spelling alone"] = board.main.spelling_alone
        plot.save_light_and_dark(_drawn(lines, levels, colours), folder / stem)
        yield Finding(board.main, "", sentence, stem, caption, described)
    for section in board.sections:
        if not section.is_suite:
            yield from _of_benchmarks(board, section, folder, colours)


def _of_benchmarks(board: Board, section: Section, folder: Path, colours: Mapping[str, str]) -> Iterator[Finding]:
    """The figures of each benchmark, accuracy against speed and by masks, with sentences about their numbers."""
    setting, table = section.setting, board.scores.table
    table = table[(table["experiment"] == BENCHMARKS) & (table["setting"] == setting)]
    parts = (setting.group, "limited" if setting.limit is not None else "", setting.served_by)
    ours = re.sub(r"[^\w.]+", "-", "".join(f"-{part}" for part in parts if part))
    for n, (name, lines) in enumerate(table.groupby("x", sort=False)):
        own = pd.DataFrame([*lines["row"]])
        said = " ".join(speed_findings(section, str(name)))
        title = f"{own['task'][0]} ({own['metric'][0].removesuffix(',none')})"
        speed, by_masks = partial(plot.frontier, own, colours=colours), partial(plot.masks, own)
        drawn = ("frontier", speed, "Accuracy against speed.", said), ("by-masks", by_masks, "Accuracy by masks.", "")
        for kind, draw, words, sentence in drawn if n < _MOST_FIGURES else ():
            with suppress(plot.NothingToDraw):
                stem = f"figures/{kind}{ours}{f'-{n + 1}' if n else ''}"
                plot.save_light_and_dark(draw(), folder / stem)
                yield Finding(section, title, sentence, stem, words, f"{title}: {words}")


# Sentences


def _one_step(section: Section) -> list[Row]:
    """The rows that are decoded in one step with both numbers of masks."""
    return [row for row in section.rows if row.who.steps in _ONE_STEP and loss(row, section.pair)]


def mask_lines(section: Section) -> list[Row]:
    """The rows of the finding about masks, all decoded in one step.

    These are the model with the largest loss among those with adapters, and its adapters; or all models, if no adapter
    was measured.
    """
    rows = _one_step(section)
    plain = [row for row in rows if not row.who.adapter]
    with_adapter = [row for row in rows if row.who.adapter]
    adapted = {
        row.id: [one for one in with_adapter if (one.who.model, one.who.other) == (row.who.model, row.who.other)]
        for row in plain
    }
    if not any(adapted.values()):
        return plain[:_MOST_LINES]
    before = max((row for row in plain if adapted[row.id]), key=lambda row: _loss_of(row, section).mean)
    return [before, *sorted(adapted[before.id], key=lambda row: row.who.adapter)]


def _loss_of(row: Row, section: Section) -> Interval:
    """The loss to masks of a row of `mask_lines`."""
    found = loss(row, section.pair)
    assert found
    return found


def masks_finding(section: Section) -> str:
    """The loss to masks, before and after fine-tuning, in sentences; "" if no row has two mask counts."""
    pair, lines = section.pair, mask_lines(section)
    plain = sorted((row for row in lines if not row.who.adapter), key=lambda row: _loss_of(row, section).mean)
    tuned = [row for row in lines if row.who.adapter]
    return " ".join(
        sentences(
            "masks",
            pair=pair,
            best=next((row for row in section.rows if row.rank == "1" and section.shows_ranks), None),
            plain=plain,
            tuned=tuned,
            accuracies=sorted(row.curve("masks")[pair[1]].mean for row in tuned),
            loss=loss,
            share=first_token_share,
            built_in=BUILT_IN,
        )
    )


def after_table(section: Section) -> str:
    """Whether all rows differ, and the drops of models for other word rules, in sentences."""
    drops = []
    for row in _one_step(section):
        few, most = (row.curve("masks")[n].over_rules for n in section.pair)
        if few and most and not row.who.adapter:
            drops.append((section.who(row), difference(most, few).scaled(100)))
    all_differ = section.shows_ranks and all(row.rank == str(n) for n, row in enumerate(section.rows, 1))
    return " ".join(sentences("after", section=section, drops=drops, all_differ=all_differ))


def speed_findings(section: Section, name: str) -> list[str]:
    """Compares, for each checkpoint, the fastest setting on a frontier of a benchmark with the best exact setting.

    There are two frontiers: of exact settings, and of the others (approximate caches and guests). Differences that are
    not significant have no sentence.
    """
    pairs = []
    rows = [row for row in section.rows if name in row.benchmarks and row.benchmarks[name].speed]
    for who in dict.fromkeys(str(row.who) for row in rows):
        own = [(row, row.benchmarks[name]) for row in rows if str(row.who) == who]
        exact = [one for one in own if is_exact(one[0])]
        for on in (exact, [one for one in own if one not in exact]) if exact else ():
            slow = max(exact, key=lambda one: (one[1].mean, one[1].speed))
            fast = max((one for one in on if one[1].mark), key=lambda one: one[1].speed, default=slow)
            if found := _change(slow[1], fast[1]):
                pairs.append((slow, fast, found))
    return sentences("speed", pairs=pairs, times=TIMES, costs=COSTS)


def _change(best: Estimate, other: Estimate) -> Interval | None:
    """How far the scores are apart, in points, if the second setting is faster and its score differs significantly."""
    if not best.score or not other.score or other.speed <= slack_of(best.speed_by) * best.speed:
        return None
    found = difference(*sorted((best.score, other.score), key=lambda score: score.mean)).scaled(100)
    return found if found.is_significant else None


# The figure of the loss to masks


def headline(section: Section) -> tuple[str, list[Line]]:
    """Its caption, and a line per checkpoint, labelled with its loss, in the order of the table."""
    lines, rows = [], mask_lines(section)
    rows += [row for row in _one_step(section) if row not in rows and not row.who.adapter][: _MOST_LINES - len(rows)]
    for row in sorted(rows, key=section.rows.index):
        found = _loss_of(row, section)
        seeds = f" ({len(row.seeds)} seeds)" if row.seeds else ""
        cost = f"drop {found.in_words}{'' if found.low is None or found.is_significant else ', not significant'}"
        name = row.who.recipe or row.who.model
        shown = row.who.model.rpartition("/")[2] + (f" + {name}" if row.who.adapter else "")
        lines.append(Line(name, row.curve("masks"), fill(f"{shown}{seeds}: {cost}", _LABEL)))
    among = f": {len(rows)} of {len(section.rows)} rows" if len(rows) < len(section.rows) else ""
    return f"Accuracy by appended masks{among}.", lines


@plot.figure_style()
def _drawn(lines: Sequence[Line], levels: Mapping[str, float], colours: Mapping[str, str]) -> Figure:
    """The figure of some lines. `levels` are percentages to compare with; `colours` are those of models and recipes."""
    longest = max(len(words) for line in lines for words in line.label.split("\n"))
    columns = 2 if len(lines) > 3 and longest <= _HALF else 1
    legend = _LEGEND_LINE * (sum(line.label.count("\n") + 1 for line in lines) / columns + 2)
    figure = Figure(figsize=(plot.COLUMN_WIDTH, 0.6 * plot.COLUMN_WIDTH + legend), layout="constrained")
    axes = figure.subplots()
    for line in lines:
        look: dict[str, Any] = {"color": colours[line.name], "label": line.label}
        percents = [100 * one.mean for one in line.curve.values()]
        if NO_MASKS in line.curve:
            axes.axhline(percents[0], **look)
        else:
            n = list(colours).index(line.name)  # names that share a colour have different symbols
            marker = plot.MARKERS[(n + n // len(plot.MARKERS)) % len(plot.MARKERS)]
            style = ":" if len(percents) < 3 else "-"  # nothing was measured between two counts
            axes.plot(list(line.curve), percents, marker=marker, linestyle=style, **look)
            lows, highs = zip(*(one.interval.ends for one in line.curve.values()), strict=True)
            axes.vlines(list(line.curve), lows, highs, color=colours[line.name], linewidth=1)
    low, high = _limits(lines)
    axes.set_ylim(low, high)
    for (words, level), dashes in zip(levels.items(), ((5, 3), (1, 2)), strict=False):
        if low < level < high:
            axes.axhline(level, color=_GREY, linewidth=0.8, linestyle=(0, dashes), label=words)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    counts = sorted({x for line in lines for x in line.curve if x != NO_MASKS}) or [1, 200]
    plot.log_axis(axes, counts)
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    axes.set_xlabel(f"{BY_NAME['masks'].x_label} (log scale)")
    axes.set_ylabel("accuracy (%)")
    figure.legend(loc="outside lower left", ncols=columns, handlelength=2.6)
    return figure


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The bounds of the axis of accuracies, in percent."""
    percents = [end for line in lines for one in line.curve.values() for end in one.interval.ends]
    low, high = min(percents), max(percents)
    margin = max(0.06 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return max(low - margin, -1), min(high + margin, 101)
