"""Makes the board from the table of scores: sections, with rows, columns and reasons to stand apart, and wordings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any

import pandas as pd

from mdlm_leaderboard.columns import COLUMNS, Column, point
from mdlm_leaderboard.rows import Curve, Estimate, Row, board_rows, is_exact, ranked, with_speeds
from mdlm_leaderboard.scores import AUTOREGRESSIVE, BY_NAME, CHANCE, NO_MASKS, Scores, Setting, Who
from mdlm_leaderboard.templates import sentences
from mdlm_lm_eval.declared import defaults_of
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from mdlm_lm_eval.results.deviations import Deviation, listed
from mdlm_lm_eval.results.frame import COSTS, shown_costs
from mdlm_lm_eval.results.names import named, without_shared
from mdlm_lm_eval.results.result_file import UNKNOWN
from mdlm_lm_eval.results.statistics import FEW_MODELS, LEAST_MODELS, Interval, mean_of_tasks, pairing, t_interval
from mdlm_lm_eval.results.suite import SPELLING_ALONE, current_version
from mdlm_lm_eval.tasks.settings import DEFAULT_SETTINGS

_FEWEST_RANKS = 3
_OF_WORDING = ("fewshot_template", "fewshot_seed")
LOSS_OVER = (2, 200)  # masks: the fewest that hold a whole answer, and the paper's most; decided before any result


@dataclass(frozen=True)
class Section:
    """The rows of one setting.

    why_apart: the reasons why they share no table with full results of the standard setting; "" without any.
    common: the settings that all rows share, in words.
    pair: the two mask counts between which the loss is computed.
    """

    title: str
    why_apart: str
    setting: Setting
    rows: tuple[Row, ...]
    common: str
    pair: tuple[int, int]

    @property
    def is_suite(self) -> bool:
        """Whether its scores are of the few-shot suite."""
        return bool(self.setting.asks)

    # For templates.
    spelling_alone = SPELLING_ALONE
    least_models, few_models = LEAST_MODELS, FEW_MODELS

    @cached_property
    def has_one_seed(self) -> bool:
        """Whether each adapter has one seed, which the names of rows can then leave out."""
        found = {(row.who.model, row.who.recipe, row.who.adapter) for row in self.rows if row.who.recipe}
        recipes = {(row.who.model, row.who.recipe) for row in self.rows if row.who.seed is not None}
        return 0 < len(found) == len(recipes)

    def who(self, row: Row) -> Who:
        """The identity by which the section's table names a row."""
        return replace(row.who, seed=None, n_seeds=0) if self.has_one_seed else row.who

    def is_beyond_ranking(self, row: Row, experiment: str) -> bool:
        """Whether an experiment of the row has points that the columns of the ranking do not show."""
        return experiment != "masks" or bool(row.seeds) or not {*row.curve("masks")} <= {NO_MASKS, *self.pair}

    @property
    def shows_ranks(self) -> bool:
        """Whether enough rows have a rank: of one or two, which were often chosen, it says nothing."""
        return sum(bool(row.rank) for row in self.rows) >= _FEWEST_RANKS

    @cached_property
    def columns(self) -> list[Column]:
        """The columns in which any row has a value; of rows without a rank, a column for each of their points."""
        if not any(row.rank for row in self.rows):
            return [point(*one) for one in dict.fromkeys(one for row in self.rows for one in row.points)]
        few, most = map(BY_NAME["masks"].at, self.pair)
        counts = {"from_": self.pair[0], "few": few, "most": most}
        found = [one for one in COLUMNS if any(one.of(row, self.pair) for row in self.rows)]
        return [
            replace(one, head=one.head.format(**counts), explanation=one.explanation.format(**counts)) for one in found
        ]

    @property
    def mask_counts(self) -> list[int]:
        """The mask counts of any row, if they are more than the columns show."""
        found = sorted({n for row in self.rows for n in row.curve("masks")})
        return found if len(found) > len(self.pair) else []

    @property
    def costs(self) -> list[str]:
        """The names of the costs that any row has."""
        return shown_costs(pd.DataFrame([{name: row.cost(name) for name in COSTS} for row in self.rows]))

    @property
    def settings(self) -> dict[str, str]:
        """The settings that vary between rows, with their defaults."""
        standard = {**defaults_of(LikelihoodOptions), **defaults_of(DecodingOptions)}
        known = {name: "–" if value is None else str(value) for name, value in standard.items()}
        return {name: known.get(name, "–") for row in self.rows for name in row.settings}

    def settings_of(self, row: Row) -> list[str]:
        """The row's value of each setting that varies, or the default if it is known to be in effect."""
        is_ours = row.who.family != AUTOREGRESSIVE and not any(one.name == UNKNOWN for one in row.who.other)
        defaults = {**self.settings, **({"cache": row.cache} if row.cache and "cache" in self.settings else {})}
        return [row.settings.get(name, default if is_ours else "–") for name, default in defaults.items()]

    def baseline(self, wanted: str) -> Row | None:
        """The row that has all these words; None if no row has."""
        rows = {row.words: row for row in self.rows}
        name = named(wanted, rows) if wanted else None
        return rows[name] if name else None

    @property
    def pairing(self) -> str:
        """Whether differences of its scores are paired by question, in words."""
        return pairing(one.score for row in self.rows for one in row.benchmarks.values() if one.score)

    @property
    def n_questions(self) -> int:
        """The most questions behind an accuracy."""
        return max(one.n_questions for row in self.rows for curve in row.curves.values() for one in curve.values())

    @property
    def approximate(self) -> list[str]:
        """The kinds of rows that have a frontier of their own, in words."""
        others = [row for row in self.rows if not is_exact(row)]
        return sorted({"guests" if "guest" in row.marks else "approximate caches" for row in others})

    @property
    def marked(self) -> list[Estimate]:
        """The estimates on a frontier or near one."""
        return [one for row in self.rows for one in row.benchmarks.values() if one.mark]

    @property
    def ranked_by(self) -> str:
        """The benchmark that most rows have."""
        accuracies = [name for row in self.rows for name, one in row.benchmarks.items() if one.is_accuracy]
        return max(self.benchmark_names, key=accuracies.count, default="")

    @property
    def benchmark_names(self) -> list[str]:
        """The benchmarks of any row; the mean of a generated group before its tasks."""
        mean = self.setting.group.removeprefix("mdlm_") + " "
        return sorted({name for row in self.rows for name in row.benchmarks}, key=lambda one: (mean not in one, one))

    @property
    def bounds(self) -> dict[str, str]:
        """Benchmark -> its `Estimate.bound`, if it has one."""
        return {name: one.bound for row in self.rows for name, one in row.benchmarks.items() if one.bound}


@dataclass(frozen=True)
class Wordings:
    """Rows that answered the same questions under the same templates and seeds, at one number of masks.

    n_seeds: the number of draws of examples.
    scores: accuracies in percent, [rows of the board, templates], means over tasks and seeds; the best row first.
    read: the templates in which the interval of any row is above chance. The others do not rank rows, since all rows
        fail there.
    """

    title: str
    n_seeds: int
    scores: pd.DataFrame
    read: tuple[int, ...]

    @property
    def rows(self) -> dict[str, list[float]]:
        """Row -> mean over templates, worst score, spread (best minus worst), then the score of each template."""
        return {name: [own.mean(), own.min(), own.max() - own.min(), *own] for name, own in self.scores.iterrows()}

    @property
    def taus(self) -> list[float]:
        """Kendall's tau between the rankings by each two templates of `read`."""
        from scipy.stats import kendalltau  # takes long to import

        return [float(kendalltau(self.scores[a], self.scores[b]).statistic) for a, b in combinations(self.read, 2)]

    @property
    def neighbours(self) -> list[tuple[str, str, float, Interval]]:
        """Each row, the next, the share of templates in which the first is better, and its lead in points."""
        found = []
        for (name, first), (next_name, second) in pairwise(self.scores.iterrows()):
            leads = (first - second).tolist()
            found.append((name, next_name, fmean(lead > 0 for lead in leads), t_interval(leads)))
        return found

    @property
    def in_words(self) -> str:
        """The number of templates, and Kendall's tau between the rankings."""
        found = [tau for tau in self.taus if tau == tau]
        above = f"; a row is above chance in {', '.join(map(str, self.read)) or 'none'}"
        mean = f"{above}, and Kendall's tau between rankings by these is {fmean(found):.2f}" if found else above
        mean += f", at least {min(found):.2f}" if len(found) > 1 else ""
        seeds = f", {self.n_seeds} draws of examples each" if self.n_seeds > 1 else ""
        return f"{len(self.scores.columns)} templates{seeds}{mean}."


@dataclass(frozen=True)
class Board:
    """The content of tables, figures and page. The first section is the main table.

    notes: a sentence about a model, by its name.
    """

    title: str
    sections: tuple[Section, ...]
    scores: Scores
    wordings: tuple[Wordings, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Section | None:
        """The first table of the suite."""
        return next((section for section in self.sections if section.is_suite), None)

    @property
    def rows(self) -> list[Row]:
        """The rows of all sections."""
        return [row for section in self.sections for row in section.rows]

    def notes_of(self, section: Section) -> dict[str, str]:
        """The notes about models that come first in this section."""
        models = {row.who.model for row in section.rows}
        for before in self.sections[: self.sections.index(section)]:
            models -= {row.who.model for row in before.rows}
        return {model: note for model, note in self.notes.items() if model in models}

    def labels_of(self, section: Section, row: Row) -> dict[str, Curve]:
        """The row's accuracies by masks with the examples' true labels and with others, if both were asked."""
        found = {}
        for one in self.sections:
            same = replace(one.setting, fewshot_labels=section.setting.fewshot_labels) == section.setting
            for other in one.rows:
                if same and other.who == row.who and other.curve("masks"):
                    found[str(one.setting.fewshot_labels)] = other.curve("masks")
        return found if len(found) > 1 else {}

    def is_apart(self, section: Section) -> bool:
        """Whether a section is folded on the page: it is set apart for other reasons than the first one."""
        return section.why_apart not in ("", self.sections[0].why_apart)


def board_of(scores: Scores, title: str, notes: Mapping[str, str]) -> Board:
    """Makes the board of a table of scores."""
    by_setting = dict(list(scores.table.groupby("setting", sort=False)))
    dates = [*sorted({one.date for one in scores.files.values()})]

    def order(one: Setting) -> tuple[Any, ...]:
        """The distance from the standard setting. Questions that need their examples, and newer versions, come first.

        The newest comparison leads, but for full results: a limited table may hold one score alone.
        """
        own, is_limited = by_setting[one], one.limit is not None
        size = own["place"].nunique()
        newest = max(dates.index(scores.files[path].date) for path in own["file"].unique())
        return (
            not one.asks,
            one.served_by,
            one.suite_version != current_version(),
            is_limited,
            is_limited and size < 2,
            -newest * is_limited,
            -size,
            *(getattr(one, name) != standard for name, standard in DEFAULT_SETTINGS.items()),
            one.asks != "mdlm_rules",
            [-int(part) for part in re.findall(r"\d+", one.suite_version or "")],
            one.chat_template,
            *(getattr(one, name) or 0 for name in DEFAULT_SETTINGS),
            one.group,
            one.at_own_lengths,
            one.suite_hash or "",
        )

    ordered = sorted(by_setting, key=order)
    taken: dict[str, int] = {}
    sections = tuple(_section(by_setting[one], one, ordered[0], taken) for one in ordered)
    return Board(title, sections, scores, tuple(wordings_of(scores)), notes)


def _section(table: pd.DataFrame, setting: Setting, main: Setting, taken: dict[str, int]) -> Section:
    rows = board_rows(table, taken)
    pair = _pair([set(row.curve("masks")) - {NO_MASKS} for row in rows])
    is_one = len({str(row.who) for row in rows}) == 1
    words = without_shared([row.who.decoding for row in rows])
    shown = [_named(row, own, is_one=is_one) for row, own in zip(rows, words, strict=True)]
    common = listed(one for one in rows[0].who.decoding if one not in words[0])
    title = ", ".join(sentences("title", setting=setting, standard=DEFAULT_SETTINGS))
    reasons = sentences("apart", setting=setting, main=main, standard=DEFAULT_SETTINGS, current=current_version())
    section = Section(title, "; ".join(reasons), setting, tuple(shown), common, pair)
    if setting.asks:
        return replace(section, rows=ranked(shown, lambda row: row.at_masks(pair[1])))
    by = section.ranked_by
    return replace(
        section, rows=ranked(with_speeds(section.rows, section.benchmark_names), lambda row: row.benchmarks.get(by))
    )


def _named(row: Row, own: Sequence[Deviation], *, is_one: bool) -> Row:
    """The row with its distinguishing settings. Its label names the checkpoint, unless the section has only one."""
    all_ = listed(own)
    label = all_ if is_one and all_ else ", ".join(filter(None, (str(row.who), all_)))
    settings = {one.name: str(one).removeprefix(f"{one.name}=") for one in own if not one.said}
    shown = listed(one for one in own if one.said)
    seeds = tuple(_named(one, own, is_one=False) for one in row.seeds)
    return replace(row, shown=shown, label=label, settings=settings, seeds=seeds)


def _pair(points: Sequence[set[Any]]) -> tuple[int, int]:
    """2 and 200 masks if any row has both; else the fewest that hold an answer, and the most, that all rows share."""
    if any(set(LOSS_OVER) <= own for own in points):
        return LOSS_OVER
    several = [own for own in points if own] or [set(LOSS_OVER)]
    counts = sorted(set.intersection(*several) or set.union(*several))
    return next((n for n in counts[:-1] if n >= LOSS_OVER[0]), counts[0]), counts[-1]


# Templates and draws of examples


def wordings_of(scores: Scores) -> list[Wordings]:
    """A table for every setting and number of masks that was run under several templates.

    Only templates and seeds that all rows have are used, so that all rows answer the same questions.
    """
    table = scores.table
    found, usual = table[table["experiment"] == "masks"], {name: DEFAULT_SETTINGS[name] for name in _OF_WORDING}
    found = found.assign(
        alike=[replace(one, **usual) for one in found["setting"]],
        template=[one.fewshot_template for one in found["setting"]],
        seed=[one.fewshot_seed for one in found["setting"]],
    )
    made = []
    for (setting, masks), own in found.groupby(["alike", "x"], sort=False):
        cells = own.groupby(["template", "seed"])["who"].nunique()
        whole = cells[cells == own["who"].nunique()].index
        shared = own[pd.MultiIndex.from_frame(own[["template", "seed"]]).isin(whole)]
        if shared["template"].nunique() > 1:
            title = f"{setting.asks} {setting.suite_version} at {masks} masks"
            title += f", --limit {setting.limit:g}" if setting.limit else ""
            made.append(Wordings(title, shared["seed"].nunique(), _by_template(shared), _read(shared)))
    return made


def _read(table: pd.DataFrame) -> tuple[int, ...]:
    """The `read` of `Wordings`."""
    found = set()
    for (_, template), own in table.groupby(["who", "template"], sort=False):
        if (mean_of_tasks([*own["share"]]).interval.low or 0) > CHANCE / 100:
            found.add(int(template))
    return tuple(sorted(found))


def _by_template(table: pd.DataFrame) -> pd.DataFrame:
    """The `scores` of `Wordings`; names of rows leave out the settings that all rows share."""
    who: list[Who] = [*dict.fromkeys(table["who"])]
    decodings = [one.decoding for one in who]
    words = without_shared(decodings) if len(who) > 1 else decodings
    names = {one: ", ".join([str(one), *map(str, own)]) for one, own in zip(who, words, strict=True)}
    by_template = table.groupby([table["who"].map(names), "template"], sort=False)["score"].mean() * 100
    scores = by_template.unstack().sort_index(axis=1)
    return scores.loc[scores.mean(axis=1).sort_values(ascending=False).index]
