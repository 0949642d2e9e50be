"""Means, 95% intervals, and differences on the same tasks or questions.

Tasks that share a word rule are not independent (their intra-class correlation is about 0.7), so intervals over tasks
are clustered by rule: Student's t over clusters. A test simulates their coverage.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from mdlm_lm_eval.results.suite import cluster_of

_BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean and the 95% interval around it; its ends are None where `n` independent values say nothing about it.

    `least` and `most` are the one-sided 95% bounds.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    least: float | None = None
    most: float | None = None

    @property
    def half_width(self) -> float | None:
        """The number after ±."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def in_words(self) -> str:
        """Such as "13.3 ± 9.3", or the mean alone."""
        return f"{self.mean:.1f}" if self.half_width is None else f"{self.mean:.1f} ± {self.half_width:.1f}"

    @property
    def with_significance(self) -> str:
        """The same; where it is not significant it says so, with the one-sided bound."""
        if self.half_width is None or self.is_significant or self.most is None:
            return self.in_words
        return f"{self.in_words}, not significant (95%), at most {self.most:.1f}"

    def scaled(self, factor: float) -> "Interval":
        """In other units, such as percentage points."""
        ends = (self.low, self.high, self.least, self.most)
        low, high, least, most = (None if end is None else factor * end for end in ends)
        return Interval(factor * self.mean, low, high, self.n, least, most)


@dataclass(frozen=True)
class McNemar:
    """Questions that only one of two models answers; `p` is the exact two-sided probability."""

    only_first: int
    only_second: int
    p: float


@cache
def _t(degrees: float, quantile: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, quantile))


def clustered_interval(values: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    """The mean of values that are independent between clusters, with Student's t interval of (clusters - 1) degrees.

    For clusters of one size this is the t interval over their means (Cameron and Miller 2015, equation 11).
    """
    mean, sums = fmean(values), dict.fromkeys(clusters, 0.0)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    n = len(sums)
    if n < 2:
        return Interval(mean, None, None, n)
    error = math.sqrt(n / (n - 1) * sum(total * total for total in sums.values())) / len(values)
    both, one = _t(n - 1, 0.975) * error, _t(n - 1, 0.95) * error
    return Interval(mean, mean - both, mean + both, n, mean - one, mean + one)


def crossed_interval(values: Sequence[Sequence[float]]) -> Interval:
    """The mean of `values` [S, R], rows of fine-tuning seeds and columns of word rules, both random and crossed.

    The variance of the mean is that of the seeds plus that of the rules minus that of what is left, but at least either
    (Cameron, Gelbach and Miller 2011, equation 2.10); degrees of freedom are Satterthwaite's, at least min(S, R) - 1.
    """
    mean, n_seeds, n_rules = fmean(map(fmean, values)), len(values), len(values[0])
    seeds = [fmean(row) - mean for row in values]
    rules = [fmean(column) - mean for column in zip(*values, strict=True)]
    left = sum(
        (x - mean - s - r) ** 2 for row, s in zip(values, seeds, strict=True) for x, r in zip(row, rules, strict=True)
    )
    degrees = (n_seeds - 1, n_rules - 1, (n_seeds - 1) * (n_rules - 1))
    sums = (sum(s * s for s in seeds) / n_seeds, sum(r * r for r in rules) / n_rules, left / (n_seeds * n_rules))
    parts = [total / degree for total, degree in zip(sums, degrees, strict=True)]
    variance = max(parts[0] + parts[1] - parts[2], *parts[:2])
    spread = sum(part**2 / degree for part, degree in zip(parts, degrees, strict=True))
    freedom = max(variance**2 / spread, min(degrees[:2])) if spread else min(degrees[:2])
    both, one = (_t(freedom, quantile) * math.sqrt(variance) for quantile in (0.975, 0.95))
    return Interval(mean, mean - both, mean + both, n_seeds, mean - one, mean + one)


def t_interval(values: Sequence[float]) -> Interval:
    """Mean of independent values with Student's t interval of n - 1 degrees of freedom."""
    return clustered_interval(values, range(len(values)))


def interval_over_tasks(scores: Mapping[str, float]) -> Interval:
    """Mean over tasks (name -> score), clustered by what they share: the few-shot tasks by their rule."""
    return clustered_interval([*scores.values()], [cluster_of(task) for task in scores])


def interval_over_seeds(by_seed: Sequence[Mapping[str, float]]) -> Interval:
    """Mean over rules of fine-tuned seeds' scores (task -> score), with seeds and rules as random."""
    rows = []
    for scores in by_seed:
        rules: dict[Hashable, list[float]] = {}
        for task in sorted(scores):
            rules.setdefault(cluster_of(task), []).append(scores[task])
        rows.append([fmean(own) for own in rules.values()])
    return crossed_interval(rows) if len(rows[0]) > 1 else t_interval([row[0] for row in rows])


def paired_interval(first: Mapping[str, float], second: Mapping[str, float]) -> Interval:
    """`second - first` on the tasks that both have, by the clustered interval of the differences.

    Raises KeyError where their tasks differ.
    """
    return interval_over_tasks({task: second[task] - first[task] for task in {**first, **second}})


def paired_drop(scores: Iterable[Mapping[str, float]]) -> Interval:
    """Largest minus smallest mean of the same tasks' scores in several settings, as `paired_interval`.

    Raises KeyError where their tasks differ, and IndexError without scores.
    """
    ordered = sorted(scores, key=lambda by_task: fmean(by_task.values()))
    return paired_interval(ordered[0], ordered[-1])


def mcnemar(pairs: Iterable[tuple[float, float]]) -> McNemar:
    """The exact test on pairs of right (1) and wrong (0) answers to the same questions."""
    from scipy.special import bdtr

    differences = [second - first for first, second in pairs]
    only_first, only_second = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    n, fewer = only_first + only_second, min(only_first, only_second)
    return McNemar(only_first, only_second, min(1.0, 2 * float(bdtr(fewer, n, 0.5))) if n else 1.0)


def paired_bootstrap(by_task: Mapping[str, Sequence[tuple[float, float]]]) -> Interval:
    """Mean over tasks of `second - first`, with the 95% interval over the questions within each task.

    Questions are drawn with replacement, task by task (percentile bootstrap, 10,000 samples).
    """
    import numpy as np

    generator = np.random.default_rng(0)
    means, samples = [], np.zeros(_BOOTSTRAP_SAMPLES)
    for pairs in by_task.values():
        values, counts = np.unique([second - first for first, second in pairs], return_counts=True)
        drawn = generator.multinomial(counts.sum(), counts / counts.sum(), size=_BOOTSTRAP_SAMPLES)
        samples += drawn @ values / counts.sum() / len(by_task)
        means.append(float(counts @ values / counts.sum()))
    low, high, least, most = map(float, np.percentile(samples, [2.5, 97.5, 5, 95]))
    return Interval(fmean(means), low, high, sum(map(len, by_task.values())), least, most)
