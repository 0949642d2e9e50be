"""A row's curves as small charts: coordinates only, which the template draws as SVG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mdlm_leaderboard.page.columns import percent
from mdlm_leaderboard.rows import AUTOREGRESSIVE, NO_MASKS, Curve, Estimate, Row

# Of the drawing area, in the SVG's own units.
LEFT, TOP, RIGHT, BOTTOM = 30, 8, 252, 118
N_LOOKS = 5
_LEAST_SPAN = 10  # percentage points: less would blow up noise
_LABEL_WIDTH = 20


@dataclass(frozen=True)
class Tick:
    """A label on an axis, `at` its coordinate."""

    at: float
    label: str


@dataclass(frozen=True)
class Point:
    """A point and what it says."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class ChartLine:
    """`look` is its shade and dashes; `line` and `band` are SVG path data, "" where fewer than two points stand."""

    label: str
    look: int
    line: str
    band: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    """One chart. `summary` says all its numbers to those who cannot see it."""

    title: str
    x_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[ChartLine, ...]

    @property
    def summary(self) -> str:
        """Every number, line by line."""
        said = ["; ".join(point.text for point in line.points) for line in self.lines]
        named = [f"{line.label}: {text}" if line.label else text for line, text in zip(self.lines, said, strict=True)]
        return f"{self.title}, accuracy in percent by {self.x_label}. {'. '.join(named)}."


def charts_of(row: Row) -> list[Chart]:
    """A chart for every experiment of which the row has two points or more."""
    masks = {n: estimate for n, estimate in row.masks.items() if n != NO_MASKS}
    by_masks = {AUTOREGRESSIVE if n == NO_MASKS else f"n = {n}": curve for n, curve in row.positions_by_masks.items()}
    distractors = {
        masks if masks == AUTOREGRESSIVE else f"n = {masks}": curve for masks, curve in row.distractors.items()
    }
    places = {f"question {place}": row.positions[place] for place in sorted(row.positions)}
    position = "number of distractor examples before the block"
    planned = (
        ("Appended masks", "number of appended masks", {"": masks}, True),
        ("Position, fixed-slot", position, places, False),
        ("Position by n masks, open-ended", position, by_masks, False),
        ("Dots", "number of dots after the answer", {"": row.dots}, False),
        ("Distractor examples", "number of distractor examples", distractors, False),
    )
    return [
        _chart(title, x_label, curves, is_log=is_log)
        for title, x_label, curves, is_log in planned
        if any(len(curve) > 1 for curve in curves.values())
    ]


@dataclass(frozen=True)
class _Scale:
    """From values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def _chart(title: str, x_label: str, curves: Mapping[str, Curve], *, is_log: bool) -> Chart:
    xs = sorted({x for curve in curves.values() for x in curve})
    across = _Scale(xs[0], xs[-1], LEFT + 6, RIGHT - 6, is_log)
    up = _y_scale([estimate for curve in curves.values() for estimate in curve.values()])
    step = next((step for step in (2, 5, 10) if up.high - up.low <= 5 * step), 20)
    y_ticks = range(step * math.ceil(up.low / step), math.floor(up.high) + 1, step)
    shown = [(label, curve) for label, curve in curves.items() if curve]
    return Chart(
        title,
        x_label,
        tuple(Tick(across(x), str(x)) for x in _apart(xs, across)),
        tuple(Tick(up(tick), str(tick)) for tick in y_ticks),
        tuple(_line(label, n % N_LOOKS, curve, across, up) for n, (label, curve) in enumerate(shown)),
    )


def _y_scale(estimates: Sequence[Estimate]) -> _Scale:
    """Percent, around all points and bands."""
    low = 100 * min(e.mean if e.low is None else e.low for e in estimates)
    high = 100 * max(e.mean if e.high is None else e.high for e in estimates)
    margin = max(0.05 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return _Scale(low - margin, high + margin, BOTTOM, TOP)


def _line(label: str, look: int, curve: Curve, across: _Scale, up: _Scale) -> ChartLine:
    points, above, below = [], [], []
    for x, estimate in sorted(curve.items()):
        text = f"{percent(estimate.mean)} at {x}"
        if estimate.low is not None and estimate.high is not None:
            text = f"{percent(estimate.mean)} ({percent(estimate.low)} to {percent(estimate.high)}) at {x}"
            above.append(f"{across(x)} {up(100 * estimate.high)}")
            below.append(f"{across(x)} {up(100 * estimate.low)}")
        points.append(Point(across(x), up(100 * estimate.mean), text))
    line = "M" + "L".join(f"{point.x} {point.y}" for point in points)
    band = "M" + "L".join([*above, *reversed(below)]) + "Z" if len(above) > 1 else ""
    return ChartLine(label, look, line, band, tuple(points))


def _apart(xs: Iterable[int], across: _Scale) -> list[int]:
    """Those of `xs` whose labels do not touch, the larger of two neighbours."""
    kept: list[int] = []
    for x in sorted(xs, reverse=True):
        if not kept or across(kept[-1]) - across(x) >= _LABEL_WIDTH:
            kept.append(x)
    return kept[::-1]
