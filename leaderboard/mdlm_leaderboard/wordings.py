"""Compares the suite's rows under several prompt templates and draws of examples."""

from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from statistics import fmean

import pandas as pd

from mdlm_leaderboard.scores import CHANCE, USUAL_WORDING, Scores, Who
from mdlm_lm_eval.results.names import without_shared
from mdlm_lm_eval.results.statistics import Interval, mean_of_tasks, t_interval


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


def wordings_of(scores: Scores) -> list[Wordings]:
    """A table for every setting and number of masks that was run under several templates.

    Only templates and seeds that all rows have are used, so that all rows answer the same questions.
    """
    table = scores.table
    found = table[table["experiment"] == "masks"]
    found = found.assign(
        alike=[replace(one, **USUAL_WORDING) for one in found["setting"]],
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
