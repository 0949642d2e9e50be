"""Scores with 95% intervals that hold near the ceiling, differences of them, and one correction for many comparisons.

The caller chooses the source of variance. Every score and rank of the board is about the rules that were asked: rules
are fixed, and sets of questions are the clusters, because a set is asked under each of its rules. For a claim about
rules that nobody asked, rules are random, and pairs of related rules are the clusters.
`benchmarks/interval_coverage.py` measures how often all these intervals hold. None is a bootstrap: over 53 sets near
99%, a bootstrap interval holds 77 times of 100, and if all answers are right its width is zero.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from statistics import covariance, fmean, variance

import numpy as np
from numpy.typing import NDArray

from mdlm_lm_eval.results.suite import cluster_of, related_rules

Floats = NDArray[np.float64]
Clusters = tuple[list[Hashable], NDArray[np.intp]]

_QUANTILE = 0.975  # of a two-sided 95% interval
_LEVEL = 0.05  # the chance of any false difference among all comparisons of a table
_MOST_ANSWERS = 1000  # the most answers that one question's score may be the mean of


@dataclass(frozen=True)
class Interval:
    """A mean and its 95% interval; the ends are None if the values do not give any."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the distance between the ends: the number after ± of a symmetric interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def is_significant(self) -> bool:
        """Whether zero is outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def in_words(self) -> str:
        """The mean and the ends, such as "84.4 (82.5 to 86.1)"; with two decimals if ends are equal with one."""
        if self.low is None or self.high is None:
            return f"{self.mean:z.1f}"
        digits = 1 if f"{self.low:z.1f}" != f"{self.high:z.1f}" else 2
        return f"{self.mean:z.{digits}f} ({self.low:z.{digits}f} to {self.high:z.{digits}f})"

    @property
    def with_significance(self) -> str:
        """A difference in words; one that is not significant is called so, with its limits, which are not 0.0."""
        if self.low is None or self.high is None or self.is_significant:
            return self.in_words
        digits = 2 if "0.0" in (f"{self.low:z.1f}", f"{self.high:z.1f}") else 1
        limits = f"between {self.low:+z.{digits}f} and {self.high:+z.{digits}f}"
        return f"{self.mean:z.{digits}f}, not significant (95%): {limits}"

    @property
    def signed(self) -> str:
        """A difference with its sign, such as "-7.3 (-13.0 to -1.6)"."""
        ends = "" if self.low is None or self.high is None else f" ({self.low:+z.1f} to {self.high:+z.1f})"
        return f"{self.mean:+z.1f}{ends}"

    def scaled(self, factor: float) -> "Interval":
        """The same interval in other units, such as percentage points."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Interval(factor * self.mean, low, high)


@dataclass(frozen=True)
class Score:
    """The mean of scores from 0 to 1, with all that a comparison with another mean on the same questions needs.

    within: the variance of the mean over questions, estimated from the clusters.
    n: the number of answers, in `n_clusters` clusters.
    parts: the deviation from the mean that each cluster adds, in the order of `clusters`; both are empty if only the
        score is known.
    seeds: the scores of several training seeds, if this is their mean; seeds are random, too.
    is_random: whether clusters are rules, and not sets of questions.
    """

    mean: float
    within: float
    n: int
    n_clusters: int
    clusters: tuple[Hashable, ...] = ()
    parts: tuple[float, ...] = ()
    seeds: tuple[float, ...] = ()
    is_random: bool = False

    @property
    def between(self) -> float:
        """The variance of the mean over seeds."""
        return variance(self.seeds) / len(self.seeds) if self.seeds else 0.0

    @property
    def interval(self) -> Interval:
        """The score's 95% interval. Its ends are None if there is one cluster only."""
        if self.n_clusters < 2:
            return Interval(self.mean)
        degrees = _degrees(self.within, self.n_clusters - 1, self.between, len(self.seeds) - 1)
        return Interval(self.mean, *_limits(self, _t(degrees, _QUANTILE)))


@cache
def _t(degrees: float, quantile: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, quantile))


# Scores from 0 to 1


def score_of_sets(by_task: Mapping[str, Sequence[tuple[Hashable, float]]], repeats: int = 1) -> Score:
    """The mean over tasks of their questions' mean score, with rules fixed.

    `by_task` has each question's set and its score. The questions of a set are one cluster, also across tasks. Each
    score is compared with the mean of its own task (linearisation for strata: Woodruff 1971). A question was asked
    `repeats` times, and its score is the mean of these answers, or of the slots of a sheet.
    """
    clusters = clusters_of(name for asked in by_task.values() for name, _ in asked)
    scores = [[score for _, score in asked] for asked in by_task.values()]
    n = sum(len(own) * max(repeats, *(answers_in(score) for score in {*own})) for own in scores)
    return score_of_questions(clusters, np.array([score for own in scores for score in own]), [*map(len, scores)], n)


def score_of_questions(clusters: Clusters, scores: Floats, sizes: Sequence[int], n: int) -> Score:
    """The same from the clusters and scores [N] of all questions, one task of `sizes` questions after the other.

    `n`: how many answers these are.
    """
    names, number_of = clusters
    means = np.add.reduceat(scores, np.cumsum([0, *sizes[:-1]])) / sizes
    parts = np.bincount(number_of, (scores - means.repeat(sizes)) / np.repeat(sizes, sizes) / len(sizes))
    return _clustered(fmean(means), dict(zip(names, parts.tolist(), strict=True)), n)


def clusters_of(sets: Iterable[Hashable]) -> Clusters:
    """The different sets in the order of their appearance, and the number [N] of each question's set among them."""
    numbers: dict[Hashable, int] = {}
    number_of = [numbers.setdefault(name, len(numbers)) for name in sets]
    return [*numbers], np.array(number_of)


def answers_in(score: float) -> int:
    """The least number of answers that a score can be the mean of: 16 for 5/16."""
    return Fraction(score).limit_denominator(_MOST_ANSWERS).denominator


def score_of_tasks(scores: Sequence[float], n_questions: Sequence[int]) -> Score:
    """The mean over tasks of which only scores and numbers of questions are known; each question is its own cluster."""
    n, of_tasks = sum(n_questions), zip(scores, n_questions, strict=True)
    within = sum(one * (1 - one) / max(asked - 1, 1) for one, asked in of_tasks) / len(scores) ** 2
    return Score(fmean(scores), max(within, n**-2), n, n)


def mean_of_tasks(scores: Sequence[Score]) -> Score:
    """The mean of the scores of several tasks. Questions of different tasks may belong to one set."""
    if len(scores) == 1:
        return scores[0]
    if not all(one.parts for one in scores):
        return score_of_tasks([one.mean for one in scores], [one.n_clusters for one in scores])
    parts: dict[Hashable, float] = {}
    for one in scores:
        for name, part in zip(one.clusters, one.parts, strict=True):
            parts[name] = parts.get(name, 0.0) + part / len(scores)
    return _clustered(fmean(one.mean for one in scores), parts, sum(one.n for one in scores))


def score_over_rules(scores: Mapping[str, float], n: int) -> Score:
    """The mean over tasks of `n` questions, as an estimate for rules that nobody asked.

    Rules are random, and pairs of related rules are the clusters.
    """
    mean = fmean(scores.values())
    parts: dict[Hashable, float] = dict.fromkeys(map(related_rules, scores), 0.0)
    for task, score in scores.items():
        parts[related_rules(task)] += (score - mean) / len(scores)
    return replace(_clustered(mean, parts, n), is_random=True)


def mean_of_seeds(scores: Sequence[Score]) -> Score:
    """The mean of the scores of several training seeds on the same questions. Seeds are random."""
    first = scores[0]
    means = [one.mean for one in scores]
    if len(scores) == 1:
        return first
    parts = [fmean(own) for own in zip(*(one.parts for one in scores), strict=True)]
    if parts:
        found = _clustered(fmean(means), dict(zip(first.clusters, parts, strict=True)), first.n)
    else:
        found = replace(first, mean=fmean(means), within=fmean(one.within for one in scores))
    return replace(found, seeds=tuple(means), is_random=first.is_random)


def _clustered(mean: float, parts: Mapping[Hashable, float], n: int) -> Score:
    k = len(parts)
    within = k / (k - 1) * sum(part * part for part in parts.values()) if k > 1 else 0.0
    # The least standard error is one answer of n (the correction in Newcombe's method 10), but the mean of k values
    # from 0 to 1 varies at most like that of k right or wrong answers.
    least = min(n**-2, mean * (1 - mean) / k) if 0 < mean < 1 else n**-2
    return Score(mean, max(within, least), n, k, tuple(parts), tuple(parts.values()))


def difference(first: Score, second: Score) -> Interval:
    """The interval of `second - first`: all differences that the test of this design does not refuse.

    The design chooses the test, never the answers:

    - Questions are random (the usual case): Student's t over clusters of questions, with clusters - 1 degrees of
      freedom. A question that was asked several times is one value. Scores with the same clusters are paired by
      cluster, and equally many training seeds in their order (Satterthwaite's degrees of freedom); other scores and
      seeds are independent. One more answer of n that differs is added to the variance: no width is zero, and of few
      right or wrong answers that differ, the test refuses about as many as McNemar's mid-p test.
    - Rules are random: the limits of both scores, which are logits' (MOVER; Newcombe 1998, method 10).

    `comparisons` has the first test's probabilities. The ends are within -1 and 1.
    """
    mean = second.mean - first.mean
    if min(first.n_clusters, second.n_clusters) < 2:
        return Interval(mean)
    within, between, degrees = _of_difference(first, second)
    quantile = _t(degrees, _QUANTILE)
    if not (first.is_random and second.is_random):
        half = quantile * math.sqrt(within + between)
        return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))
    variances = [one.within + one.between for one in (first, second)]
    share = (sum(variances) - within - between) / 2 / math.sqrt(variances[0] * variances[1])
    limits = [_limits(one, quantile) for one in (first, second)]
    (below_1, above_1), (below_2, above_2) = (
        (one.mean - low, high - one.mean) for one, (low, high) in zip((first, second), limits, strict=True)
    )
    down = _added(below_2, above_1, share)
    return Interval(mean, mean - down, mean + _added(above_2, below_1, share))


def against(baseline: Score, other: Score) -> str:
    """The difference to a baseline in points; "equal" if every question has the same score in both."""
    is_same = bool(other.parts) and baseline == other
    return "equal" if is_same else difference(baseline, other).scaled(100).signed


def pairing(scores: Iterable[Score]) -> str:
    """Whether differences of these scores are paired by question, in words."""
    return "paired by question" if all(one.parts for one in scores) else "unpaired (see --log_samples)"


def _of_difference(first: Score, second: Score) -> tuple[float, float, float]:
    """The variances of a difference over clusters and over seeds, and its degrees of freedom."""
    k = min(first.n_clusters, second.n_clusters)
    within = first.within + second.within
    if first.parts and first.clusters == second.clusters:
        parts = zip(first.parts, second.parts, strict=True)
        within = k / (k - 1) * sum((other - one) ** 2 for one, other in parts)
    within += min(first.n, second.n) ** -2
    between = first.between + second.between
    n_seeds = [len(one.seeds) for one in (first, second) if one.seeds]
    if len(n_seeds) == 2 and n_seeds[0] == n_seeds[1]:
        between = max(between - 2 * covariance(first.seeds, second.seeds) / n_seeds[0], 0.0)
    return within, between, _degrees(within, k - 1, between, min(n_seeds, default=0) - 1)


def _degrees(within: float, of_within: float, between: float, of_between: float) -> float:
    """Satterthwaite's degrees of freedom of the sum of two variances."""
    if not between:
        return of_within
    return (within + between) ** 2 / (within**2 / of_within + between**2 / of_between)


def _limits(score: Score, quantile: float) -> tuple[float, float]:
    """The limits of a score.

    If questions are random, these are Wilson's limits for the number of independent questions that gives the same
    variance. If rules are random, they are the limits of the mean's logit (delta method), as logits vary least between
    rules.
    """
    mean, error = score.mean, math.sqrt(score.within + score.between)
    is_inside = 0 < mean < 1
    if score.is_random and is_inside:
        logit, half = math.log(mean / (1 - mean)), quantile * error / mean / (1 - mean)
        low, high = ((1 + math.tanh(end / 2)) / 2 for end in (logit - half, logit + half))
        return low, high
    alike = score.n if score.is_random else score.n_clusters  # if all answers are right or all wrong, a set counts once
    n = mean * (1 - mean) / error**2 if is_inside else alike
    return wilson(mean, n, quantile)


def wilson(mean: float, n: float, quantile: float = 1.959964) -> tuple[float, float]:
    """Wilson's limits of a share of `n` questions; `n` need not be a whole number (Dean and Pagano 2015)."""
    square = quantile * quantile
    middle = (mean + square / 2 / n) / (1 + square / n)
    half = quantile / (1 + square / n) * math.sqrt(mean * (1 - mean) / n + square / 4 / n / n)
    return max(min(middle - half, mean), 0.0), min(max(middle + half, mean), 1.0)


def _added(one: float, other: float, share: float) -> float:
    return math.sqrt(max(one * one + other * other - 2 * share * one * other, 0.0))


# Many comparisons


def comparisons(scores: Sequence[Score]) -> np.ndarray:
    """The two-sided probabilities [scores, scores] of differences as large by chance: the t test of `difference`."""
    from scipy.special import stdtr

    first = next((one for one in scores if one.parts), scores[0])
    paired = [one.parts if one.clusters == first.clusters else (0.0,) * len(first.parts) for one in scores]
    parts, k = np.array(paired), np.array([one.n_clusters for one in scores])
    n = np.array([one.n for one in scores], dtype=float)
    k_of_both = np.minimum(k[:, None], k[None])
    shared = parts @ parts.T * first.n_clusters / max(first.n_clusters - 1, 1)
    is_paired = np.array([bool(one.parts) and one.clusters == first.clusters for one in scores])
    of_pairs = shared.diagonal()[:, None] + shared.diagonal()[None] - 2 * shared
    within = np.array([one.within for one in scores])
    variances = np.where(is_paired[:, None] & is_paired[None], of_pairs, within[:, None] + within[None])
    variances += np.minimum(n[:, None], n[None]) ** -2
    degrees = np.maximum(k_of_both - 1.0, 1.0)
    for row, one in ((row, one) for row, one in enumerate(scores) if one.seeds):
        for column, other in enumerate(scores):
            inside, between, freedom = _of_difference(one, other)
            variances[row, column] = variances[column, row] = inside + between
            degrees[row, column] = degrees[column, row] = freedom
    means = np.array([one.mean for one in scores])
    return np.asarray(2 * stdtr(degrees, -np.abs(means[:, None] - means[None]) / np.sqrt(variances)))


def holm(probabilities: np.ndarray) -> np.ndarray:
    """A boolean per hypothesis: whether it is rejected, so that 95 of 100 tables reject no true one (Holm 1979)."""
    order = np.argsort(probabilities, kind="stable")
    is_small = probabilities[order] * (len(order) - np.arange(len(order))) <= _LEVEL
    refused = np.empty(len(order), dtype=bool)
    refused[order] = np.logical_and.accumulate(is_small)
    return refused


# Values on any scale


def clustered_interval(values: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    """The mean of values that are independent between clusters, with Student's t interval of (clusters - 1) degrees.

    For clusters of one size this is the t interval over their means (Cameron and Miller 2015, equation 11).
    """
    mean, sums = fmean(values), dict.fromkeys(clusters, 0.0)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    n = len(sums)
    if n < 2:
        return Interval(mean)
    error = math.sqrt(n / (n - 1) * sum(total * total for total in sums.values())) / len(values)
    half = _t(n - 1, _QUANTILE) * error
    return Interval(mean, mean - half, mean + half)


def correlation_interval(r: float, n: int) -> tuple[float, float] | None:
    """Fisher's 95% interval of Pearson's r over `n` independent pairs, or clusters of pairs; None if `n` is below 4."""
    if n < 4 or not -1 < r < 1:
        return None
    half = _t(math.inf, _QUANTILE) / math.sqrt(n - 3)
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def t_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with Student's t interval of n - 1 degrees of freedom."""
    return clustered_interval(values, range(len(values)))


def interval_over_tasks(values: Mapping[str, float]) -> Interval:
    """The mean over tasks (name -> value on any scale), clustered by word rule; rules count as independent."""
    return clustered_interval([*values.values()], [cluster_of(task) for task in values])
