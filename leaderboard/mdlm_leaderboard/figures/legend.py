"""How the lines of a figure look and what its legend says: colours for models, dashes for kinds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D

from mdlm_leaderboard.figures.panels import Line
from mdlm_leaderboard.figures.plan import Figure
from mdlm_leaderboard.figures.style import GREY, clipped, model_style, variant_style
from mdlm_leaderboard.rows import NO_MASKS

_LABEL_LENGTH = 48  # characters across a column


@dataclass(frozen=True)
class Looks:
    """The look of every line of a figure. `others` are the other settings of each model, in their order; `levels` the
    models without masks, each drawn as one level along the axis of masks.
    """

    models: Sequence[str]
    names: Mapping[str, str]
    kinds: Sequence[str]
    others: Mapping[str, Sequence[str]]
    levels: frozenset[str]
    is_shared: bool

    def style(self, line: Line) -> dict[str, Any]:
        """Keywords of `plot`."""
        return self._style(line.model, self.kinds.index(line.kind), self.others[line.model].index(line.other))

    def handles(self) -> list[Line2D]:
        """The legend's entries: models where they share a panel, else the panels name them; kinds in grey."""
        entries = []
        if self.is_shared:
            for model, others in self.others.items():
                for n, other in enumerate(others):
                    told = (self.names[model], other if len(others) > 1 else "", self._level(model))
                    label = ", ".join(filter(None, told))
                    entries.append(_entry(label, self._style(model, 0, n)))
        if any(self.kinds):
            styles = [variant_style(GREY, n, self._n_variants) for n in range(len(self.kinds))]
            entries += [_entry(kind, style) for kind, style in zip(self.kinds, styles, strict=True)]
        return entries

    def _style(self, model: str, kind: int, other: int) -> dict[str, Any]:
        variant = kind + (other * len(self.kinds) if self.is_shared else 0)
        style = model_style(self.models.index(model), variant, self._n_variants)
        return {**style, "marker": ""} if model in self.levels else style

    def _level(self, model: str) -> str:
        return "no masks" if model in self.levels else ""

    @property
    def _n_variants(self) -> int:
        return len(self.kinds) * (max(map(len, self.others.values())) if self.is_shared else 1)


def looks_of(figure: Figure, models: Sequence[str], names: Mapping[str, str]) -> Looks:
    """`models` in the order of their colours, `names` to show for them."""
    lines = [line for panel in figure.panels for line in panel.lines]
    others: dict[str, list[str]] = {line.model: [] for line in lines}
    for line in lines:
        if line.other not in others[line.model]:
            others[line.model].append(line.other)
    is_shared = not any(panel.model for panel in figure.panels)
    curved = {line.model for line in lines if figure.kind.experiment.x_scale == "linear" or NO_MASKS not in line.curve}
    levels = frozenset(others) - curved
    return Looks(models, names, list(dict.fromkeys(line.kind for line in lines)), others, levels, is_shared)


def n_columns(handles: Sequence[Line2D]) -> int:
    """Over how many columns the entries are spread, so that they fit beside each other in few rows."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    fitting = max(1, min(len(handles), 60 // (longest + 8)))
    return math.ceil(len(handles) / math.ceil(len(handles) / fitting))


def _entry(label: str, style: Mapping[str, Any]) -> Line2D:
    return Line2D([], [], label=clipped(label, _LABEL_LENGTH), **style)
