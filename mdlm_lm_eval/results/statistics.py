"""Scores with 95% intervals that hold near the ceiling, differences of them, and one correction for many comparisons.

The caller chooses the source of variance. Every score and rank of the board is about the rules that were asked: rules
are fixed, and sets of questions are the clusters, because a set is asked under each of its rules. For a claim about
rules that nobody asked, rules are random, and pairs of related rules are the clusters. For a claim about trained
models, models are random, and the questions are fixed (`median_of`).
`benchmarks/interval_coverage.py` measures how often all these intervals hold. None is a bootstrap: over 53 sets near
99%, a bootstrap interval holds 77 times of 100, and if all answers are right its width is zero.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from mdlm_lm_eval.results.suite import cluster_of, related_rules

Floats = NDArray[np.float64]
Clusters = tuple[list[Hashable], NDArray[np.intp]]

_QUANTILE = 0.975  # of a two-sided 95% interval
_LEVEL = 0.05  # the chance of any false difference among all comparisons of a table
_MOST_ANSWERS = 1000  # the most answers that one question's score may be the mean of
LEAST_MODELS = 8  # the fewest trained models whose values have an interval
FEW_MODELS = (
    f"Of fewer than {LEAST_MODELS} trained models all values are shown and no interval: whether they collapse decides "
    "the mean, and so few do not tell how often they do."
)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95% interval; the ends are None if the values do not give any.

    values: those of too few trained models for an interval, whose median is `mean`.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...] = ()

    @property
    def ends(self) -> tuple[float, float]:
        """The ends to draw: twice the mean if there are none."""
        return self.mean if self.low is None else self.low, self.mean if self.high is None else self.high

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
        has_equal_ends = self.low is not None and f"{self.low:z.1f}" == f"{self.high:z.1f}"
        return self.written("z.2f" if has_equal_ends else "z.1f")

    @property
    def with_significance(self) -> str:
        """A difference in words; one that is not significant is called so, with its limits, which are not 0.0."""
        if self.low is None or self.is_significant:
            return self.in_words
        digits = 2 if "0.0" in (f"{self.low:z.1f}", f"{self.high:z.1f}") else 1
        limits = f"between {self.low:+z.{digits}f} and {self.high:+z.{digits}f}"
        return f"{self.mean:z.{digits}f}, not significant (95%): {limits}"

    @property
    def signed(self) -> str:
        """A difference with its sign, such as "-7.3 (-13.0 to -1.6)"."""
        return self.written("+z.1f")

    def written(self, form: str) -> str:
        """The mean and the ends, each in a number format such as "+.1f"; the values if there are no ends."""
        ends = f" ({self.low:{form}} to {self.high:{form}})" if self.low is not None else ""
        values = f" (median of {', '.join(f'{one:{form}}' for one in self.values)})" if self.values else ""
        return f"{self.mean:{form}}{ends or values}"

    def scaled(self, factor: float) -> "Interval":
        """The same interval in other units, such as percentage points."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Interval(factor * self.mean, low, high, tuple(factor * one for one in self.values))


@dataclass(frozen=True)
class Score:
    """The mean of scores from 0 to 1, with all that a comparison with another mean on the same questions needs.

    within: the variance of the mean over questions, estimated from the clusters.
    n: the number of answers, in `n_clusters` clusters.
    parts: the deviation from the mean that each cluster adds, in the order of `clusters`; both are empty if only the
        score is known.
    seeds: the scores of several training seeds, if this is their median; seeds are random then, and not questions.
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
    def interval(self) -> Interval:
        """The score's 95% interval. Its ends are None if there is one cluster only, or few seeds."""
        if self.seeds:
            return median_of(self.seeds)
        if self.n_clusters < 2:
            return Interval(self.mean)
        return Interval(self.mean, *_limits(self, _t(self.n_clusters - 1, _QUANTILE)))


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
    n = sum(len(own) * answers_per_question({*own}, repeats) for own in scores)
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


def answers_per_question(scores: Iterable[float], repeats: int) -> int:
    """The number of answers in a question's score, of a task whose questions were asked `repeats` times.

    It is 1 if no score is a mean: a filter such as `take_first` or a majority vote leaves one answer of several. The
    fraction of a pass@k says more answers than there are.
    """
    least = max(map(answers_in, scores), default=1)
    return repeats if least > 1 and repeats > 1 else least


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
    parts: dict[Hashable, float] = defaultdict(float)
    for one in scores:
        for name, part in zip(one.clusters, one.parts, strict=True):
            parts[name] += part / len(scores)
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


def median_of_seeds(scores: Sequence[Score]) -> Score:
    """The median of the scores of several training seeds on the same questions, in one order. Seeds are random."""
    if len(scores) == 1:
        return scores[0]
    means = [one.mean for one in scores]
    return replace(scores[0], mean=median(means), within=0.0, clusters=(), parts=(), seeds=tuple(means))


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
      cluster; other scores are independent. One more answer of n that differs is added to the variance: no width is
      zero, and of few right or wrong answers that differ, the test refuses about as many as McNemar's mid-p test.
    - Rules are random: the limits of both scores, which are logits' (MOVER; Newcombe 1998, method 10).
    - Training seeds are random: the sign test (`median_of`), of seeds paired in their order, or beside one model.

    `comparisons` has the first test's probabilities. The ends are within -1 and 1.
    """
    mean = second.mean - first.mean
    if first.seeds or second.seeds:
        changes = _changes(first, second)
        return median_of(changes) if changes else Interval(mean)
    if min(first.n_clusters, second.n_clusters) < 2:
        return Interval(mean)
    within, degrees = _of_difference(first, second)
    quantile = _t(degrees, _QUANTILE)
    if not (first.is_random and second.is_random):
        half = quantile * math.sqrt(within)
        return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))
    share = (first.within + second.within - within) / 2 / math.sqrt(first.within * second.within)
    (low_1, high_1), (low_2, high_2) = (_limits(one, quantile) for one in (first, second))
    down = _added(second.mean - low_2, high_1 - first.mean, share)
    up = _added(high_2 - second.mean, first.mean - low_1, share)
    return Interval(mean, mean - down, mean + up)


def against(baseline: Score, other: Score) -> str:
    """The difference to a baseline in points; "equal" if every question has the same score in both."""
    is_same = bool(other.parts) and baseline == other
    return "equal" if is_same else difference(baseline, other).scaled(100).signed


def pairing(scores: Iterable[Score]) -> str:
    """Whether differences of these scores are paired by question, in words."""
    return "paired by question" if all(one.parts for one in scores) else "unpaired (see --log_samples)"


def _of_difference(first: Score, second: Score) -> tuple[float, float]:
    """The variance of a difference over clusters, and its degrees of freedom."""
    k = min(first.n_clusters, second.n_clusters)
    within = first.within + second.within
    if first.parts and first.clusters == second.clusters:
        parts = zip(first.parts, second.parts, strict=True)
        within = k / (k - 1) * sum((other - one) ** 2 for one, other in parts)
    return within + min(first.n, second.n) ** -2, k - 1


def _changes(first: Score, second: Score) -> list[float]:
    """The differences of paired training seeds, or of seeds to one model; none if their numbers differ."""
    n = max(len(first.seeds), len(second.seeds))
    befores, afters = first.seeds or (first.mean,) * n, second.seeds or (second.mean,) * n
    if len(befores) != len(afters):
        return []
    return [after - before for before, after in zip(befores, afters, strict=True)]


def _limits(score: Score, quantile: float) -> tuple[float, float]:
    """The limits of a score.

    If questions are random, these are Wilson's limits for the number of independent questions that gives the same
    variance. If rules are random, they are the limits of the mean's logit (delta method), as logits vary least between
    rules.
    """
    mean, error = score.mean, math.sqrt(score.within)
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
    """The two-sided probabilities [scores, scores] of differences as large by chance: the tests of `difference`.

    Rules must be fixed. It is 1 for fewer training seeds than have an interval.
    """
    from scipy.special import stdtr

    facts = [(one.mean, one.within, one.n, one.n_clusters) for one in scores]
    means, within, n, k = np.array(facts, dtype=float).T
    first = next((one for one in scores if one.parts), scores[0])
    is_paired = np.array([bool(one.parts) and one.clusters == first.clusters for one in scores])
    parts = np.array([one.parts if one.clusters == first.clusters else (0.0,) * len(first.parts) for one in scores])
    shared = parts @ parts.T * first.n_clusters / max(first.n_clusters - 1, 1)
    of_pairs = np.add.outer(shared.diagonal(), shared.diagonal()) - 2 * shared
    variances = np.where(np.outer(is_paired, is_paired), of_pairs, np.add.outer(within, within))
    variances += np.minimum.outer(n, n) ** -2
    degrees = np.maximum(np.minimum.outer(k, k) - 1, 1)
    found = np.asarray(2 * stdtr(degrees, -np.abs(np.subtract.outer(means, means)) / np.sqrt(variances)))
    for row, one in ((row, one) for row, one in enumerate(scores) if one.seeds):
        for column, other in enumerate(scores):
            changes = _changes(one, other)
            p = sign_test(changes) if len(changes) >= LEAST_MODELS else 1.0
            found[row, column] = found[column, row] = p
    return found


def holm(probabilities: np.ndarray) -> np.ndarray:
    """A boolean per hypothesis: whether it is rejected, so that 95 of 100 tables reject no true one (Holm 1979)."""
    order = np.argsort(probabilities, kind="stable")
    is_small = probabilities[order] * (len(order) - np.arange(len(order))) <= _LEVEL
    refused = np.empty(len(order), dtype=bool)
    refused[order] = np.logical_and.accumulate(is_small)
    return refused


# Trained models


def median_of(values: Sequence[float]) -> Interval:
    """The median of models' values with the interval of two order statistics: all medians that `sign_test` allows.

    Of fewer models than `LEAST_MODELS`, it has no ends and all values.
    """
    n, ordered = len(values), sorted(values)
    if n < LEAST_MODELS:
        return Interval(median(values), values=tuple(values))
    at = max(k for k in range(n) if _tail(n - k, n) <= _LEVEL / 2)
    return Interval(median(values), ordered[at], ordered[n - 1 - at])


def sign_test(changes: Sequence[float]) -> float:
    """The two-sided probability of so many changes of one sign, if their median is 0. Zeros count for neither sign."""
    most = max(sum(change > 0 for change in changes), sum(change < 0 for change in changes))
    return min(1.0, 2 * _tail(most, len(changes)))


def _tail(k: int, n: int) -> float:
    """The probability of at least `k` heads of `n` coins."""
    return sum(math.comb(n, heads) for heads in range(k, n + 1)) / 2**n


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
