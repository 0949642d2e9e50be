"""How figures look: colours that colour-blind readers tell apart, markers, dashes and sizes."""

from collections.abc import Sequence
from typing import Any

# Okabe and Ito's palette without yellow, which is too light on white; its black as dark grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
GREY = "#8a8a8a"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)))

COLUMN_WIDTH = 3.3  # inches, of one column of a paper
CHANCE = 100 / 3  # percent, of three options

# Any keys: matplotlib 3.11 types each name, earlier releases do not.
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7.5,
    "figure.labelsize": 7.5,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "savefig.dpi": 300,
    # A dollar sign in a model's name is a dollar sign.
    "text.parse_math": False,
    # Without a salt of its own every SVG would get other ids each time.
    "svg.hashsalt": "mdlm-leaderboard",
}


def model_style(model_index: int, variant: int, n_variants: int) -> dict[str, Any]:
    """Keywords of `plot`: colour and marker tell models, the rest a model's variants (`variant_style`)."""
    style = variant_style(COLOURS[model_index], variant, n_variants)
    hollow = {"markerfacecolor": "white"} if variant // len(_DASHES) % 2 else {}
    return {**style, **hollow, "marker": MARKERS[model_index]}


def variant_style(colour: str, variant: int, n_variants: int) -> dict[str, Any]:
    """The `variant`th of `n_variants` in shades of `colour` and dashes."""
    share = 0.5 * variant / max(n_variants - 1, 1)
    return {"color": _darker(colour, share), "linestyle": _DASHES[variant % len(_DASHES)]}


def short_names(models: Sequence[str]) -> dict[str, str]:
    """Names without their organisation where that leaves them different."""
    short = {model: model.rpartition("/")[2] for model in models}
    return {model: name if list(short.values()).count(name) == 1 else model for model, name in short.items()}


def clipped(text: str, length: int) -> str:
    """`text` on one line, of at most `length` characters: what it begins and ends with."""
    line = "".join(character if character.isprintable() else " " for character in text)
    if len(line) <= length:
        return line
    end = length // 2
    return f"{line[: length - end - 1]}…{line[-end:]}"


def _darker(colour: str, share: float) -> str:
    return "#" + "".join(f"{round(int(colour[i : i + 2], 16) * (1 - share)):02x}" for i in (1, 3, 5))
