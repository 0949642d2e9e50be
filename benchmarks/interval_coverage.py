"""How often the 95% intervals of scores, differences and ranks hold the truth, by simulation.

    python benchmarks/interval_coverage.py --write    # into three tables beside this file, and into README.md

Of the suite, answers are drawn from logits with effects of word rules (correlated 0.9 in pairs of related rules), of a
rule's two tasks, and of sets of three questions; two settings share 70% of each. The truth is the expected share of
right answers. Beside the intervals in use stand those that were not chosen: Student's t over the eight rules,
and a bootstrap over sets (BCa).

Of other benchmarks (`coverage_of_differences.csv`), `mdlm-leaderboard compare` tests two settings of equal or different
expected scores: many questions, few that are asked often, questions in clusters, scores near 0 and 100.

Of twenty trained models (`coverage_over_models.csv`), some collapse after fine-tuning: the median change and the share
that collapses have intervals, and two ways of fine-tuning are compared by the sign test.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import bootstrap

from mdlm_lm_eval.results.statistics import (
    Interval,
    Score,
    clusters_of,
    comparisons,
    difference,
    holm,
    interval_over_tasks,
    score_of_questions,
    score_over_rules,
)
from mdlm_lm_eval.results.text import markdown_table, replace_table
from mdlm_lm_eval.tasks.rule_sets import PAIRS, TRIPLES
from training.study_tables import over_models

FOLDER = Path(__file__).parent
DISTRACTORS = ("smallest", "largest")
RULES = [rule for pair in PAIRS for rule in pair]
TASKS = [f"{rule}_{distractor}" for rule in RULES for distractor in DISTRACTORS]
OF_PAIR, OF_RULE, SHARED = 0.9, 0.72, 0.7  # shares of variance: a pair's in a rule, a rule's in a task, both settings'
OF_SETS = 1.5  # standard deviation of logits
N_EQUAL = 8  # models of a table whose ranks are compared
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
Answers = np.ndarray  # [settings, questions], 1 or 0


@dataclass(frozen=True)
class Case:
    """`means` are the expected scores of one setting, or of two whose difference counts; `spread` is the deviation of
    rules in logits.
    """

    claim: str
    means: tuple[float, ...]
    n_sets: int = 533
    spread: float = 1.0


_SCORES, _PAIRS = [(0.84,), (0.97,), (0.99,)], [(0.84, 0.99), (0.97, 0.99), (0.99, 0.99)]
CASES = (
    *(Case("rules fixed", means, n_sets=n) for means in _SCORES + _PAIRS for n in (533, 53)),
    *(Case("rules random", means, spread=spread) for means in _SCORES + _PAIRS for spread in (0.5, 1.0)),
)


class Simulation:
    """Draws answers of a case again and again."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case, self.rng = case, np.random.default_rng(seed)
        sets = list(islice(cycle((triple, d) for triple in TRIPLES for d in DISTRACTORS), case.n_sets))
        asked = [(f"{rule}_{d}", number) for number, (triple, d) in enumerate(sets) for rule in triple]
        self.tasks, self.sets = [task for task, _ in asked], np.array([number for _, number in asked])
        self.rows = {task: [n for n, one in enumerate(self.tasks) if one == task] for task in TASKS}
        self.clusters = clusters_of(self.sets[np.concatenate([*self.rows.values()])].tolist())
        self.of_task = np.array([TASKS.index(task) for task in self.tasks])
        # With rules fixed, one draw of them stands for the suite.
        self.rules = self._rules()
        is_random = case.claim == "rules random"
        self.deviation = float(np.hypot(case.spread, OF_SETS) if is_random else OF_SETS)
        self.centres = [brentq(self._beyond, -20, 30, args=(n, mean)) for n, mean in enumerate(case.means)]

    def _beyond(self, logit: float, setting: int, mean: float) -> float:
        effects = np.zeros(1) if self.case.claim == "rules random" else self.case.spread * self.rules[setting]
        return (
            float((_WEIGHTS @ expit(logit + self.deviation * _NODES[:, None] + effects)).mean() / _WEIGHTS.sum()) - mean
        )

    def _both(self, shape: tuple[int, ...]) -> np.ndarray:
        """[settings, *shape] of variance 1, alike in the settings as far as `SHARED` says."""
        own = self.rng.normal(size=(len(self.case.means), *shape))
        return np.sqrt(SHARED) * self.rng.normal(size=shape) + np.sqrt(1 - SHARED) * own

    def _rules(self) -> np.ndarray:
        """[settings, tasks]"""
        pairs, rules = np.repeat(self._both((4,)), 2, axis=1), self._both((8,))
        rules = np.repeat(np.sqrt(OF_PAIR) * pairs + np.sqrt(1 - OF_PAIR) * rules, 2, axis=1)
        return np.sqrt(OF_RULE) * rules + np.sqrt(1 - OF_RULE) * self._both((16,))

    def answers(self) -> Answers:
        """Of one repetition."""
        case = self.case
        rules = self._rules() if case.claim == "rules random" else self.rules
        logits = np.array(self.centres)[:, None] + case.spread * rules[:, self.of_task]
        logits = logits + OF_SETS * self._both((case.n_sets,))[:, self.sets]
        return (self.rng.random(logits.shape) < expit(logits)) * 1.0

    def score(self, answers: np.ndarray) -> Score:
        """Of one setting's answers [questions]."""
        if self.case.claim == "rules random":
            return score_over_rules({t: float(answers[rows].mean()) for t, rows in self.rows.items()}, len(answers))
        order = np.concatenate([*self.rows.values()])
        sizes = [*map(len, self.rows.values())]
        return score_of_questions(self.clusters, answers[order], sizes, len(order))

    def in_use(self, answers: Answers) -> Interval:
        """The interval of the package: of a score, or of the second setting minus the first."""
        scores = [self.score(own) for own in answers]
        return scores[0].interval if len(scores) == 1 else difference(*scores)

    def over_rules(self, answers: Answers) -> Interval:
        """Student's t over the eight word rules, as in version 0.3."""
        values = answers[-1] - answers[0] if len(answers) > 1 else answers[0]
        return interval_over_tasks({task: float(values[rows].mean()) for task, rows in self.rows.items()})

    def over_sets(self, answers: Answers) -> Interval:
        """A bootstrap over sets (BCa)."""
        values = answers[-1] - answers[0] if len(answers) > 1 else answers[0]
        sums = np.bincount(self.sets, values) / 3
        mean = float(sums.mean())
        if not np.ptp(sums):
            return Interval(mean, mean, mean)
        found = bootstrap((sums,), np.mean, n_resamples=999, rng=self.rng).confidence_interval
        return Interval(mean, float(found.low), float(found.high))


def coverage(case: Case, repetitions: int, *, others: bool = False) -> list[float]:
    """Percent of intervals that hold the truth: those in use, then with `others` t over rules and the bootstrap."""
    simulation, truth = Simulation(case), case.means[-1] - (case.means[0] if len(case.means) > 1 else 0.0)
    ways = [simulation.in_use, *([simulation.over_rules, simulation.over_sets] if others else [])]
    held = np.zeros(len(ways))
    for _ in range(repetitions):
        answers = simulation.answers()
        found = [way(answers) for way in ways]
        held += [(one.low or 0.0) <= truth <= (one.high or 0.0) for one in found]
    return [float(share) for share in 100 * held / repetitions]


def tables_with_false_ranks(mean: float, repetitions: int) -> float:
    """Percent of tables of equally good models in which any rank differs, corrected by Holm."""
    simulation = Simulation(Case("rules fixed", (mean,) * N_EQUAL))
    false = 0
    for _ in range(repetitions):
        found = comparisons([simulation.score(own) for own in simulation.answers()])[np.triu_indices(N_EQUAL, 1)]
        false += bool(holm(found).any())
    return 100 * false / repetitions


@dataclass(frozen=True)
class Comparison:
    """Two settings that answer the same questions.

    means: their expected scores.
    spread: the standard deviation of questions in logits.
    shared: the share of its variance that is the same in both settings.
    in_cluster: the number of questions of a cluster, which share 70% of it.
    """

    n: int
    repeats: int
    means: tuple[float, float]
    spread: float = 2.0
    shared: float = 0.9
    in_cluster: int = 1

    def draws(self, repetitions: int, rng: np.random.Generator) -> np.ndarray:
        """The scores [2, repetitions, questions] of questions, each the mean of its answers."""

        def effects(*shape: int) -> np.ndarray:
            """[*shape, repetitions, questions] of variance 1."""
            own = rng.normal(size=(*shape, repetitions, self.n))
            if self.in_cluster == 1:
                return own
            of_clusters = rng.normal(size=(*shape, repetitions, self.n // self.in_cluster))
            return np.sqrt(0.7) * of_clusters.repeat(self.in_cluster, axis=-1) + np.sqrt(0.3) * own

        questions = np.sqrt(self.shared) * effects() + np.sqrt(1 - self.shared) * effects(2)
        centres = [
            brentq(
                lambda logit, mean=mean: _WEIGHTS @ expit(logit + self.spread * _NODES) - mean * _WEIGHTS.sum(), -60, 60
            )
            for mean in self.means
        ]
        chances = expit(np.array(centres)[:, None, None] + self.spread * questions)
        return rng.binomial(self.repeats, chances) / self.repeats

    def found(self, repetitions: int, seed: int = 0) -> tuple[float, float]:
        """Percent of intervals that hold the true difference, and of comparisons that are called significant."""
        clusters, truth = clusters_of(np.arange(self.n) // self.in_cluster), self.means[1] - self.means[0]
        held = significant = 0
        for own in self.draws(repetitions, np.random.default_rng(seed)).swapaxes(0, 1):
            asked = [score_of_questions(clusters, one, [self.n], self.n * self.repeats) for one in own]
            interval = difference(*asked)
            held += (interval.low or 0.0) <= truth <= (interval.high or 0.0)
            significant += interval.is_significant
        return 100 * held / repetitions, 100 * significant / repetitions


COMPARISONS = (
    *(Comparison(1319, 1, means, shared=shared) for means in ((0.6, 0.6), (0.6, 0.62)) for shared in (0.9, 0.3)),
    Comparison(1319, 1, (0.985, 0.985)),
    Comparison(1319, 1, (0.985, 0.995)),
    *(Comparison(164, 8, means) for means in ((0.35, 0.35), (0.35, 0.4), (0.97, 0.97), (0.95, 0.98))),
    *(Comparison(164, 1, means, shared=0.5) for means in ((0.005, 0.005), (0.005, 0.05), (0.05, 0.05))),
    *(Comparison(48, 1, means, shared=0.7) for means in ((0.8, 0.8), (0.6, 0.8))),
    *(Comparison(30, 8, means) for means in ((0.15, 0.15), (0.1, 0.2), (0.02, 0.02), (0.98, 0.98), (0.02, 0.1))),
    *(Comparison(30, 16, means, spread=4.0, shared=0.7) for means in ((0.03, 0.03), (0.03, 0.1))),
    *(Comparison(200, 1, means, shared=0.7, in_cluster=5) for means in ((0.75, 0.75), (0.75, 0.63))),
    *(Comparison(100, 1, means, shared=0.7, in_cluster=5) for means in ((0.75, 0.75), (0.97, 0.97), (0.97, 0.99))),
    *(Comparison(160, 1, means, shared=0.7, in_cluster=20) for means in ((0.6, 0.6), (0.6, 0.8))),
    *(Comparison(10, 1, means, shared=0.7) for means in ((0.5, 0.5), (0.4, 0.9))),
)
OF_COMPARISONS = (
    "questions",
    "times asked",
    "in a cluster",
    "expected (%)",
    "spread",
    "shared",
    "held (%)",
    "significant (%)",
)


def compared(repetitions: int) -> list[list[str]]:
    """All comparisons."""
    lines = []
    for case in COMPARISONS:
        means = " and ".join(f"{100 * mean:g}" for mean in case.means)
        design = [str(one) for one in (case.n, case.repeats, case.in_cluster, means, case.spread, case.shared)]
        lines.append([*design, *(f"{one:.1f}" for one in case.found(repetitions))])
        print(*lines[-1], flush=True)
    return lines


def of_comparisons(lines: Sequence[Sequence[str]]) -> str:
    """The least and the greatest coverage and rate of false differences of all comparisons."""
    held = [float(line[6]) for line in lines]
    false = [float(line[7]) for line, case in zip(lines, COMPARISONS, strict=True) if len({*case.means}) == 1]
    return (
        f"`compare` calls {min(false):.1f} to {max(false):.1f}% of equal settings different. Its intervals contain "
        f"{min(held):.1f} to {max(held):.1f}% of the true differences ([{len(lines)} cases]"
        "(coverage_of_differences.csv))."
    )


@dataclass(frozen=True)
class Models:
    """Trained models, of which a share collapses after each of two ways of fine-tuning.

    A model that collapses loses 40 to 90 points, another some: 5 points on average (standard deviation 4), of which 2
    vary with the way of fine-tuning.
    """

    collapse: tuple[float, float]
    n: int = 20

    def changes(self, repetitions: int, rng: np.random.Generator) -> np.ndarray:
        """Changes by both ways in points, [2, repetitions, models]."""
        shape = (2, repetitions, self.n)
        usual = rng.normal(-5, np.sqrt(12), size=shape[1:]) + rng.normal(0, 2, size=shape)
        collapses = rng.random(shape) < np.array(self.collapse)[:, None, None]
        return np.where(collapses, rng.uniform(-90, -40, size=shape), usual)

    def found(self, repetitions: int, seed: int = 0) -> tuple[float, ...]:
        """Percent of intervals that hold: of the median change by the first way, of the share that collapses, and of
        the median difference of both; then percent of differences that the sign test calls significant.
        """
        rng = np.random.default_rng(seed)
        many = replace(self, n=500).changes(2000, rng)
        truths = [float(np.median(many[0])), 100 * float((many[0] < -30).mean()), float(np.median(many[1] - many[0]))]
        if self.collapse[0] == self.collapse[1]:
            truths[2] = 0.0
        held = np.zeros(4)
        for first, second in self.changes(repetitions, rng).swapaxes(0, 1):
            one, both = over_models(first.tolist()), over_models((second - first).tolist())
            intervals = one.median, one.collapsed, both.median
            held[:3] += [(a.low or 0.0) <= truth <= (a.high or 0.0) for a, truth in zip(intervals, truths, strict=True)]
            held[3] += both.p < 0.05
        return tuple(float(one) for one in 100 * held / repetitions)


MODELS = (*(Models((share, share)) for share in (0.0, 0.1, 0.2, 0.3, 0.4)), Models((0.4, 0.0)), Models((0.2, 0.0)))
OF_MODELS = ("collapse (%)", "models", "median held (%)", "share held (%)", "difference held (%)", "significant (%)")


def of_models(repetitions: int) -> list[list[str]]:
    """All cases of trained models."""
    lines = []
    for case in MODELS:
        shares = " and ".join(f"{100 * share:.0f}" for share in case.collapse)
        lines.append([shares, str(case.n), *(f"{one:.1f}" for one in case.found(repetitions))])
        print(*lines[-1], flush=True)
    return lines


_RULES = {"rules fixed": "questions about the same word rules", "rules random": "questions about other word rules"}
HEADS = ("claim", "of", "expected (%)", "questions", "spread of rules", "in use", "t over 8 rules", "bootstrap")


def rows(repetitions: int) -> list[list[str]]:
    """All cases."""
    lines = []
    for case in CASES:
        found = coverage(case, repetitions, others=True)
        means = " and ".join(f"{100 * mean:.0f}" for mean in case.means)
        what = "score" if len(case.means) == 1 else "difference"
        shown = [f"{one:.1f}" for one in found]
        lines.append([case.claim, what, means, str(3 * case.n_sets), f"{case.spread:.1f}", *shown])
        print(*lines[-1], flush=True)
    return lines


def ranges(lines: Sequence[Sequence[str]]) -> str:
    """For each claim the least and the greatest coverage by the interval in use."""
    by_claim: dict[tuple[str, ...], list[float]] = {}
    for line in lines:
        by_claim.setdefault(tuple(line[:2]), []).append(float(line[5]))
    shown = [
        [_RULES[rules], what, f"{min(found):.1f} to {max(found):.1f}"] for (rules, what), found in by_claim.items()
    ]
    return markdown_table(["interval for", "of a", "contains the true value (%)"], shown)


def ranks(repetitions: int) -> str:
    """How often equally good models seem to differ."""
    found = [tables_with_false_ranks(mean, repetitions) for mean in (0.84, 0.97, 0.99)]
    return (
        f"If {N_EQUAL} models are equally good, a table ranks one above another in {min(found):.1f} to "
        f"{max(found):.1f}% of cases."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000, help="twice as many for comparisons")
    parser.add_argument("--write", action="store_true", help="beside this file")
    given = parser.parse_args(arguments)
    of_suite, of_others = rows(given.repetitions), compared(2 * given.repetitions)
    models = of_models(2 * given.repetitions)
    words = ranks(given.repetitions), of_comparisons(of_others)
    shown = "\n\n".join([ranges(of_suite), *words])
    print(shown)
    if given.write:
        tables = {
            "interval_coverage.csv": [HEADS, *of_suite],
            "coverage_of_differences.csv": [OF_COMPARISONS, *of_others],
            "coverage_over_models.csv": [OF_MODELS, *models],
        }
        for name, lines in tables.items():
            with (FOLDER / name).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
        replace_table(FOLDER / "README.md", "coverage", shown)


if __name__ == "__main__":
    main()
