"""How often the 95% intervals of scores, differences and ranks hold the truth, by simulation.

    python benchmarks/interval_coverage.py --write    # into interval_coverage.csv, and its ranges into README.md

Answers are drawn from logits with effects of word rules (correlated 0.9 in pairs of related rules), of a rule's two
tasks, of sets of three questions, and of seeds; two settings share 70% of each. The truth is the expected share of
right answers. Beside the intervals in use stand those that were not chosen: Student's t over the eight rules, and a
bootstrap over sets (BCa).
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import bootstrap

from mdlm_lm_eval.results.markdown import markdown_table, replace_table
from mdlm_lm_eval.results.statistics import (
    Interval,
    Score,
    comparisons,
    difference,
    holm,
    interval_over_tasks,
    mean_of_seeds,
    score_of_sets,
    score_over_rules,
)
from mdlm_lm_eval.tasks.rule_sets import PAIRS, TRIPLES

FOLDER = Path(__file__).parent
DISTRACTORS = ("smallest", "largest")
RULES = [rule for pair in PAIRS for rule in pair]
TASKS = [f"{rule}_{distractor}" for rule in RULES for distractor in DISTRACTORS]
OF_PAIR, OF_RULE, SHARED = 0.9, 0.72, 0.7  # shares of variance: a pair's in a rule, a rule's in a task, both settings'
OF_SETS, OF_SEEDS = 1.5, 0.5  # standard deviations of logits
N_EQUAL = 8  # models of a table whose ranks are compared
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
Answers = np.ndarray  # [settings, seeds, questions], 1 or 0


@dataclass(frozen=True)
class Case:
    """`means` are the expected scores of one setting, or of two whose difference counts; `spread` is the deviation of
    rules in logits.
    """

    claim: str
    means: tuple[float, ...]
    n_sets: int = 533
    spread: float = 1.0
    n_seeds: int = 1


_SCORES, _PAIRS = [(0.84,), (0.97,), (0.99,)], [(0.84, 0.99), (0.97, 0.99), (0.99, 0.99)]
CASES = (
    *(Case("rules fixed", means, n_sets=n) for means in _SCORES + _PAIRS for n in (533, 53)),
    *(Case("rules random", means, spread=spread) for means in _SCORES + _PAIRS for spread in (0.5, 1.0)),
    *(Case("seeds random", means, n_seeds=5) for means in _SCORES + _PAIRS),
)


class Simulation:
    """Draws answers of a case again and again."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case, self.rng = case, np.random.default_rng(seed)
        sets = list(islice(cycle((triple, d) for triple in TRIPLES for d in DISTRACTORS), case.n_sets))
        asked = [(f"{rule}_{d}", number) for number, (triple, d) in enumerate(sets) for rule in triple]
        self.tasks, self.sets = [task for task, _ in asked], np.array([number for _, number in asked])
        self.rows = {task: [n for n, one in enumerate(self.tasks) if one == task] for task in TASKS}
        self.of_task = np.array([TASKS.index(task) for task in self.tasks])
        # With rules fixed, one draw of them stands for the suite.
        self.rules = self._rules()
        within = np.hypot(OF_SETS, OF_SEEDS if case.n_seeds > 1 else 0.0)
        is_random = case.claim == "rules random"
        self.deviation = float(np.hypot(case.spread, within) if is_random else within)
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
        seeds = OF_SEEDS * self._both((case.n_seeds,))[:, :, None] if case.n_seeds > 1 else 0.0
        return (
            self.rng.random((*logits.shape[:1], case.n_seeds, logits.shape[1])) < expit(logits[:, None] + seeds)
        ) * 1.0

    def score(self, seeds: np.ndarray) -> Score:
        """Of one setting's answers [seeds, questions]."""
        if self.case.claim == "rules random":
            return score_over_rules({t: float(seeds[0, rows].mean()) for t, rows in self.rows.items()}, seeds.shape[1])
        return mean_of_seeds(
            [
                score_of_sets({t: [*zip(self.sets[rows], own[rows], strict=True)] for t, rows in self.rows.items()})
                for own in seeds
            ]
        )

    def in_use(self, answers: Answers) -> Interval:
        """The interval of the package: of a score, or of the second setting minus the first."""
        scores = [self.score(own) for own in answers]
        return scores[0].interval if len(scores) == 1 else difference(*scores)

    def over_rules(self, answers: Answers) -> Interval:
        """Student's t over the eight word rules, as in version 0.3."""
        values = answers[-1, 0] - answers[0, 0] if len(answers) > 1 else answers[0, 0]
        return interval_over_tasks({task: float(values[rows].mean()) for task, rows in self.rows.items()})

    def over_sets(self, answers: Answers) -> Interval:
        """A bootstrap over sets (BCa)."""
        values = answers[-1, 0] - answers[0, 0] if len(answers) > 1 else answers[0, 0]
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


def tables_with_false_ranks(mean: float, repetitions: int, *, corrected: bool = True) -> float:
    """Percent of tables of equally good models in which any rank differs; `corrected` by Holm."""
    simulation = Simulation(Case("rules fixed", (mean,) * N_EQUAL))
    false = 0
    for _ in range(repetitions):
        found = comparisons([simulation.score(own) for own in simulation.answers()])[np.triu_indices(N_EQUAL, 1)]
        false += bool(holm(found).any() if corrected else (found < 0.05).any())
    return 100 * false / repetitions


HEADS = ("claim", "of", "expected (%)", "questions", "spread of rules", "in use", "t over 8 rules", "bootstrap")


def rows(repetitions: int) -> list[list[str]]:
    """All cases."""
    lines = []
    for case in CASES:
        found = coverage(case, repetitions, others=case.n_seeds == 1)
        means = " and ".join(f"{100 * mean:.0f}" for mean in case.means)
        what = "score" if len(case.means) == 1 else "difference"
        shown = [f"{one:.1f}" for one in found] + [""] * (3 - len(found))
        lines.append([case.claim, what, means, str(3 * case.n_sets), f"{case.spread:.1f}", *shown])
        print(*lines[-1], flush=True)
    return lines


def ranges(lines: Sequence[Sequence[str]]) -> str:
    """For each claim the least and the greatest coverage by the interval in use."""
    by_claim: dict[tuple[str, ...], list[float]] = {}
    for line in lines:
        by_claim.setdefault(tuple(line[:2]), []).append(float(line[5]))
    shown = [[*claim, f"{min(found):.1f} to {max(found):.1f}"] for claim, found in by_claim.items()]
    return markdown_table([*HEADS[:2], "held (%)"], shown)


def ranks(repetitions: int) -> str:
    """How often equally good models seem to differ."""
    by_correction = (
        [tables_with_false_ranks(mean, repetitions, corrected=corrected) for mean in (0.84, 0.97, 0.99)]
        for corrected in (True, False)
    )
    with_holm, without = (f"{min(one):.1f} to {max(one):.1f}%" for one in by_correction)
    return (
        f"If {N_EQUAL} models are equally good, {with_holm} of tables rank some of them apart; without Holm's "
        f"correction, {without} would."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--write", action="store_true", help="beside this file")
    given = parser.parse_args(arguments)
    found = rows(given.repetitions)
    shown = f"{ranges(found)}\n\n{ranks(given.repetitions)}"
    print(shown)
    if given.write:
        with (FOLDER / "interval_coverage.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADS, *found])
        replace_table(FOLDER / "README.md", "coverage", shown)


if __name__ == "__main__":
    main()
