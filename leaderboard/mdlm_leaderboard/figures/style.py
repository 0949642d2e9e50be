"""How the lines of models are told apart: colours and markers for models, shades and dashes for their variants."""

from collections.abc import Sequence
from typing import Any

from mdlm_lm_eval.results.figure_style import COLOURS, MARKERS

GREY = "#8a8a8a"
CHANCE = 100 / 3  # percent, of three options
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)))


def model_style(model_index: int, variant: int, n_variants: int) -> dict[str, Any]:
    """Keywords of `plot`: colour and marker tell models, the rest a model's variants (`variant_style`)."""
    style = variant_style(COLOURS[model_index], variant, n_variants)
    hollow = {"markerfacecolor": "white"} if variant // len(_DASHES) % 2 else {}
    return {**style, **hollow, "marker": MARKERS[model_index]}


def variant_style(colour: str, variant: int, n_variants: int) -> dict[str, Any]:
    """The `variant`th of `n_variants` in shades of `colour` and dashes."""
    share = 0.5 * variant / max(n_variants - 1, 1)
    return {"color": darker(colour, share), "linestyle": _DASHES[variant % len(_DASHES)]}


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


def darker(colour: str, share: float) -> str:
    """`colour` with `share` of it taken away."""
    return "#" + "".join(f"{round(int(colour[i : i + 2], 16) * (1 - share)):02x}" for i in (1, 3, 5))
