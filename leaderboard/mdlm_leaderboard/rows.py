"""What a leaderboard holds: rows of scores, the settings that make them comparable, and the runs behind them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Stands in a row's `masks` and `positions_by_masks` for an autoregressive model, which has no masks.
NO_MASKS = 0
# The same in a row's `distractors`.
AUTOREGRESSIVE = "autoregressive"

Curve = Mapping[int, "Estimate"]


@dataclass(frozen=True)
class Estimate:
    """A mean accuracy in 0..1 over tasks with its 95% band, mean +- 1.96 sd / sqrt(n_tasks).

    A single benchmark's band is mean +- 1.96 standard errors over its questions.
    """

    mean: float
    low: float | None
    high: float | None
    n_tasks: int
    n_questions: int


@dataclass(frozen=True)
class Run:
    """One result file. `path` is relative to the results folder, `date` is ISO 8601 in UTC ("" where it is unknown)."""

    path: str
    command: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    date: str


@dataclass(frozen=True)
class Setting:
    """What must be equal for two scores to share a table.

    `fewshot_*` are the suite's settings, None in a row that holds standard benchmarks only. `limit` is lm-eval's
    `--limit`, None for all questions.
    """

    suite_version: str | None
    suite_hash: str | None
    fewshot_relevant: int | None
    fewshot_distractors: int | None
    fewshot_seed: int | None
    limit: float | None
    chat_template: bool


@dataclass(frozen=True)
class PublishedFigures:
    """What a paper's text says of a row whose accuracies it only plots; points and percent, not shares."""

    drop_points: float | None = None
    dots_drop_points: float | None = None
    degradation_percent: float | None = None


@dataclass(frozen=True)
class Row:
    """All scores of one model, adapter, way of decoding and setting.

    masks: number of masks -> accuracy on `mdlm_context` (E4, E7, E9, E11).
    dots: number of dots after the slot -> accuracy on `mdlm_slot` (E6).
    positions: question "left", "middle" or "right" -> block position -> accuracy on `mdlm_locality` (E1, E2).
    positions_by_masks: number of masks -> block position -> accuracy on `mdlm_position` (E8, E10).
    distractors: masks ("2" or "20%" of the prompt) -> number of distractor examples -> accuracy (E5).
    benchmarks: a standard benchmark's column, which names task, version, metric, shots and masks -> score in 0..1.
    """

    id: str
    model: str
    adapter: str | None
    origin: Literal["measured", "published"]
    citation: str
    family: str
    setting: Setting
    steps: str
    unmasking: str
    other: str
    masks: Curve = field(default_factory=dict)
    dots: Curve = field(default_factory=dict)
    positions: Mapping[str, Curve] = field(default_factory=dict)
    positions_by_masks: Mapping[int, Curve] = field(default_factory=dict)
    distractors: Mapping[str, Curve] = field(default_factory=dict)
    benchmarks: Mapping[str, Estimate] = field(default_factory=dict)
    published: PublishedFigures | None = None
    runs: tuple[Run, ...] = ()

    @property
    def drop_points(self) -> float | None:
        """Largest minus smallest accuracy over the mask counts, in percentage points; None below two mask counts."""
        if self.published:
            return self.published.drop_points
        return _drop(self.masks)

    @property
    def dots_drop_points(self) -> float | None:
        """The same over the numbers of dots."""
        if self.published:
            return self.published.dots_drop_points
        return _drop(self.dots)

    @property
    def degradation_percent(self) -> float | None:
        """(max - min) / max accuracy over the mask counts, in percent (paper, figure 22); None below two of them."""
        if self.published:
            return self.published.degradation_percent
        drop = _drop(self.masks)
        best = max((estimate.mean for estimate in self.masks.values()), default=0.0)
        return None if drop is None or not best else drop / best

    @property
    def locality_gap_points(self) -> float | None:
        """Best minus worst block position, question right, in percentage points; None below two positions."""
        return _drop(self.positions.get("right", {}))


@dataclass(frozen=True)
class Refused:
    """A result file, or what a file holds, that is in no table; `reason` is one sentence."""

    path: str
    reason: str


@dataclass(frozen=True)
class Section:
    """The rows of one setting. `why_apart` says why they share no table with others, "" where that needs no word."""

    title: str
    why_apart: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Board:
    """Everything that tables, figures and page show; the first section is the main table."""

    sections: tuple[Section, ...]
    refused: tuple[Refused, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)


def _drop(curve: Curve) -> float | None:
    means = [estimate.mean for estimate in curve.values()]
    return 100 * (max(means) - min(means)) if len(means) > 1 else None
