"""What a leaderboard holds: rows of scores, the settings that make them comparable, and the runs behind them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Stands for an autoregressive model where others have a number of masks, in curves and in series.
NO_MASKS = 0
AUTOREGRESSIVE = "autoregressive"
ONE_STEP = ("1", AUTOREGRESSIVE)  # as `LeaderboardRow.steps` has it

Series = str | int
Curve = Mapping[Any, "Estimate"]


@dataclass(frozen=True)
class Speed:
    """What the answers of a generation benchmark took.

    benchmark: what all ways of decoding it share, such as `gsm8k v3 (exact_match; 5-shot)`.
    method: the way of decoding without what sets its pace, `pace`, such as `confidence_threshold=0.9`.
    is_exact: whether no cache may change an answer.
    tokens_per_forward: tokens of answers per forward pass of their rows.
    seconds: wall time per request on `machine`.
    """

    benchmark: str
    method: str
    pace: str
    is_exact: bool
    machine: str
    tokens_per_forward: float
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """A mean accuracy in 0..1 with its 95% band: the t interval over tasks.

    A single benchmark's band is mean +- 1.96 standard errors over its questions. `by_task` has the accuracy of every
    task, by which two estimates of the same tasks are compared, and `speed` what a generation benchmark's answers took,
    where the result file says it.
    """

    mean: float
    low: float | None
    high: float | None
    n_tasks: int
    n_questions: int
    by_task: Mapping[str, float] = field(default_factory=dict)
    speed: Speed | None = None


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
class LeaderboardRow:
    """All scores of one model, adapter, way of decoding and setting.

    `curves` are experiment -> series -> x -> accuracy, as the table in `experiments` says. `stated` are the summaries
    that a paper's text states of a row whose accuracies it only plots, by their names in that table.
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
    curves: Mapping[str, Mapping[Series, Curve]] = field(default_factory=dict)
    stated: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    def series(self, experiment: str) -> Mapping[Series, Curve]:
        """The curves of an experiment, none where it was not measured."""
        return self.curves.get(experiment, {})

    def curve(self, experiment: str, series: Series = "") -> Curve:
        """One of them, without points where it was not measured."""
        return self.series(experiment).get(series, {})


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
    rows: tuple[LeaderboardRow, ...]


@dataclass(frozen=True)
class Board:
    """Everything that tables, figures and page show; the first section is the main table."""

    sections: tuple[Section, ...]
    refused: tuple[Refused, ...]

    @property
    def rows(self) -> tuple[LeaderboardRow, ...]:
        """The rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)
