"""Means, 95% intervals, and differences on the same tasks or questions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

_BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean and the 95% interval around it, whose ends are None where `n` values tell nothing of it."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """What stands after ±."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def in_words(self) -> str:
        """Such as "13.3 ± 6.3", or the mean alone."""
        return f"{self.mean:.1f}" if self.half_width is None else f"{self.mean:.1f} ± {self.half_width:.1f}"

    def scaled(self, factor: float) -> "Interval":
        """In other units, such as percentage points."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Interval(factor * self.mean, low, high, self.n)


@dataclass(frozen=True)
class McNemar:
    """Of questions that one model answers and the other does not; `p` is the exact two-sided probability."""

    only_first: int
    only_second: int
    p: float


def t_quantile(n: int) -> float:
    """What the standard error of `n` values, two or more, is multiplied by for half their 95% interval."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975))


def t_interval(values: Sequence[float]) -> Interval:
    """Mean of independent values, such as tasks, with Student's t interval of n - 1 degrees of freedom."""
    if len(values) < 2:
        return Interval(fmean(values), None, None, len(values))
    half = t_quantile(len(values)) * stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half, len(values))


def paired_interval(first: Mapping[str, float], second: Mapping[str, float]) -> Interval:
    """`second - first` on the tasks that both have, by the t interval of the differences per task.

    Raises KeyError where their tasks differ.
    """
    return t_interval([second[task] - first[task] for task in {**first, **second}])


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
    low, high = np.percentile(samples, [2.5, 97.5])
    return Interval(fmean(means), float(low), float(high), sum(map(len, by_task.values())))
