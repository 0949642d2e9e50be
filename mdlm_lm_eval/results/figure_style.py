"""Colours, markers and sizes of the figures of leaderboard and analyses, and the functions that save them."""

import colorsys
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from mdlm_lm_eval.results.files import write_whole
from mdlm_lm_eval.results.text import printable

# Okabe and Ito's palette, which colour-blind readers can distinguish. Yellow is left out, since it is too light on
# white, and black is replaced by dark grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMN_WIDTH = 3.3  # inches, of one column of a paper
PAPER, DARK_PAPER = "#ffffff", "#16181b"  # the background, in light and in dark mode

_INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_SMALL = ("font.size", "axes.titlesize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
# Any keys: matplotlib 3.11 types each name, earlier releases do not.
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    # Not black: SVGs do not write down black, so that `on_dark` could not replace it.
    **dict.fromkeys(_INK, "#1a1a1a"),
    **dict.fromkeys(_SMALL, 7),
    **dict.fromkeys(("axes.labelsize", "figure.labelsize", "figure.titlesize"), 7.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "savefig.dpi": 300,
    "text.parse_math": False,  # a dollar sign in a model's name is a dollar sign
    "svg.hashsalt": "mdlm-lm-eval",  # without a salt, an SVG gets other ids each time it is written
}
# No dates, so that the same numbers make the same files.
_METADATA: Mapping[str, dict[str, Any]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Name -> colour, so that a name has one colour in all figures of a page."""
    return {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(dict.fromkeys(names))}


@contextmanager
def figure_style(**changes: Any) -> Iterator[None]:
    """Applies this style to figures drawn in a `with` block or a decorated function, whatever matplotlibrc says.

    `changes` are further settings of matplotlib, with "_" for ".".
    """
    changed = {name.replace("_", "."): value for name, value in changes.items()}
    with style.context(SETTINGS | changed, after_reset=True):
        yield


def log_axis(axes: Axes, ticks: Sequence[float] | None = None) -> None:
    """Makes the x axis logarithmic, with plain numbers at `ticks`, by default at 1, 2 and 5 times powers of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Writes `path` as SVG and PNG, in this order, and returns the files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in figure.findobj(Text):
        text.set_text(printable(text.get_text(), keep="\n"))  # an SVG may hold no control characters
    figure.draw_without_rendering()  # ticks depend on the layout, and the layout on the widths of ticks
    files = [path.parent / f"{path.name}{suffix}" for suffix in _METADATA]
    for file, metadata in zip(files, _METADATA.values(), strict=True):
        with matplotlib.rc_context({name: SETTINGS[name] for name in ("svg.hashsalt", "savefig.dpi")}):
            figure.savefig(file, metadata=metadata)
    return files


def save_light_and_dark(figure: Figure, path: Path) -> None:
    """Writes `path` as SVG and PNG, and an SVG for dark mode into the folder `dark` beside them."""
    light, _ = save_figure(figure, path)
    write_whole(path.parent / "dark" / light.name, on_dark(light.read_text(encoding="utf-8")))


def on_dark(svg: str) -> str:
    """An SVG that matplotlib drew on white, recoloured for dark mode: lighter hues, and dark greys become light."""
    return re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: _lit(found[0]), svg)


def _lit(colour: str) -> str:
    if colour == PAPER:
        return DARK_PAPER
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    lightness = 0.9 - 0.75 * lightness if saturation < 0.1 else 0.48 + 0.35 * lightness
    return to_hex(colorsys.hls_to_rgb(hue, lightness, saturation))
