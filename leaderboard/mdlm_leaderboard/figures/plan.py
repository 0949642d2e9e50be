"""Which figures a board has: every kind for which a section has data."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mdlm_leaderboard.experiments import EXPERIMENTS, drop
from mdlm_leaderboard.figures.kinds import KINDS, FigureKind
from mdlm_leaderboard.figures.panels import MAX_PANELS, Panel
from mdlm_leaderboard.figures.style import short_names
from mdlm_leaderboard.rows import Board, Curve, LeaderboardRow
from mdlm_leaderboard.slugs import slug

# As many colours as can be told apart on white, by colour-blind readers too.
MAX_MODELS = 7


@dataclass(frozen=True)
class Figure:
    """A figure of one section. `stem` is its file without ending, relative to the output folder, with slashes.

    `section` is the section's title.
    """

    stem: str
    section: str
    kind: FigureKind
    panels: tuple[Panel, ...]

    @property
    def dark_stem(self) -> str:
        """The file for dark mode."""
        folder, _, name = self.stem.rpartition("/")
        return f"{folder}/dark/{name}"

    @property
    def title(self) -> str:
        """The caption's first sentence, without its stop."""
        return self.kind.caption.partition(". ")[0]

    @property
    def finding(self) -> str:
        """By how much accuracy varies along the lines, in one sentence; "" of lines over speed, or without a range."""
        lines = [(panel, line) for panel in self.panels for line in panel.lines]
        names = short_names(list(dict.fromkeys(line.model for _, line in lines)))
        told = [(names[line.model], line.kind, panel.detail) for panel, line in lines]
        varied = [n for n in range(3) if len({parts[n] for parts in told}) > 1] or [0]
        ranges = sorted(
            (interval.mean, interval.in_words, ", ".join(parts[n] for n in varied if parts[n]))
            for parts, (_, line) in zip(told, lines, strict=True)
            if (interval := drop(line.curve))
        )
        if not ranges or self.kind.experiment.speed:
            return ""
        (_, least, steadiest), (_, most, least_steady) = ranges[0], ranges[-1]
        between = f" to {most} for {least_steady}" if len(ranges) > 1 else ""
        return f"Between best and worst: {least} points for {steadiest}{between}."

    @property
    def described(self) -> str:
        """Which lines there are, for those who cannot see them."""
        lines = [line for panel in self.panels for line in panel.lines]
        models = dict.fromkeys(line.model for line in lines)
        kinds = dict.fromkeys(line.kind for line in lines if line.kind)
        return "; ".join(filter(None, (", ".join(models), ", ".join(kinds))))


def model_order(board: Board) -> tuple[str, ...]:
    """The models that figures show, of most measured points first; a model's place here gives its colour."""
    points: Counter[str] = Counter()
    for row in board.rows:
        points[row.model] += sum(len(curve) for curve in _curves(row))
    return tuple(model for model, n in points.most_common(MAX_MODELS) if n)


def figures_of(board: Board) -> list[Figure]:
    """Every figure for which there is data, section by section: settings never share one."""
    shown = set(model_order(board))
    figures = []
    for n, section in enumerate(board.sections):
        folder = f"figures/{n + 1}-{slug(section.title)[:80].strip('-') or 'section'}" if n else "figures"
        rows = [row for row in section.rows if row.model in shown]
        for kind in KINDS:
            panels = kind.panels(rows)[:MAX_PANELS]
            if any(len(line.curve) > 1 for panel in panels for line in panel.lines):
                figures.append(Figure(f"{folder}/{kind.name}", section.title, kind, tuple(panels)))
    return figures


def _curves(row: LeaderboardRow) -> Iterable[Curve]:
    drawn = (experiment for experiment in EXPERIMENTS if experiment.name != "benchmarks")
    return (curve for experiment in drawn for curve in row.series(experiment.name).values())
