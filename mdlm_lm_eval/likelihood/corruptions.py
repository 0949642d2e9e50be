"""The continuation tokens that each Monte-Carlo sample masks, and the sample's weight.

The estimated quantity is LLaDA's likelihood bound (Nie et al. 2025, "Large Language Diffusion Models", Eq. 6): draw the
number of masked tokens k uniformly from 1..n, draw k of the n positions, and weight the sum of their log-probabilities
by n / k. The schemes here have the same expectation and a lower variance.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import torch


@dataclass(frozen=True)
class Corruption:
    """One corrupted continuation, and the contribution of its log-probabilities.

    `masked` and `scored` are positions within the continuation, ascending; `scored` is a subset of `masked`. The
    contribution to log p is `weight` times the sum of log p(token) over `scored`.
    """

    masked: tuple[int, ...]
    scored: tuple[int, ...]
    weight: float


def monte_carlo_corruptions(n: int, samples: int, generator: torch.Generator) -> list[Corruption]:
    """At most `samples` corruptions of `n` tokens whose weighted sum is an unbiased estimate of the bound.

    If all 2^n - 1 masks fit into `samples`, they are enumerated, and the sum is the expectation itself. Equal masks are
    merged: their weights are added, and they take one forward pass.
    """
    if 2**n - 1 <= samples:
        weighted_sizes_and_masks = _every_mask(n)
    else:
        strata = _strata_by_size(n, samples) if n <= samples else _strata_over_sizes(n, samples, generator)
        weighted_sizes_and_masks = _deal(strata, n, generator)
    weights: dict[tuple[int, ...], float] = {}
    for masked, weight in weighted_sizes_and_masks:
        weights[masked] = weights.get(masked, 0.0) + weight
    return [Corruption(masked, masked, weight) for masked, weight in weights.items()]


def _every_mask(n: int) -> Iterator[tuple[tuple[int, ...], float]]:
    for k in range(1, n + 1):
        for masked in itertools.combinations(range(n), k):
            yield masked, 1.0 / (k * math.comb(n, k))  # P(k) P(mask | k) n / k


@lru_cache(maxsize=4096)
def _strata_by_size(n: int, samples: int) -> tuple[tuple[int, float], ...]:
    """(k, weight) of each sample for n <= samples: every k occurs, so the choice of k adds no variance.

    A sample with few masks averages few tokens, so its variance is about proportional to n / k, and the best share of
    samples falls as 1 / sqrt(k) (Neyman allocation). k = n has one mask and needs one sample.
    """
    counts = [1] * n
    for _ in range(samples - n):
        gains = [
            1 / (k * counts[k - 1] * (counts[k - 1] + 1)) if counts[k - 1] < math.comb(n, k) else 0.0
            for k in range(1, n + 1)
        ]
        counts[max(range(n), key=gains.__getitem__)] += 1
    return tuple((k, 1.0 / (k * count)) for k, count in enumerate(counts, start=1) for _ in range(count))


def _strata_over_sizes(n: int, samples: int, generator: torch.Generator) -> list[tuple[int, float]]:
    """(k, weight) of each sample for n > samples: one k, drawn uniformly, from each stratum of 1..n.

    The strata's borders are at n (j / samples)^2, the continuous form of the allocation in `_strata_by_size`. Weight
    times k sums to n for every draw.
    """
    offsets: list[float] = torch.rand(samples, generator=generator, dtype=torch.float64).tolist()
    strata = []
    for j, offset in enumerate(offsets):
        low, high = (j / samples) ** 2, ((j + 1) / samples) ** 2
        k = min(n, 1 + int(n * (low + (high - low) * offset)))
        strata.append((k, (high - low) * n / k))
    return strata


def _deal(
    strata: list[tuple[int, float]] | tuple[tuple[int, float], ...], n: int, generator: torch.Generator
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Deals each sample its k positions from a shuffled deck of all n, which is shuffled again when it runs out.

    So all positions are masked equally often, and, as k ascends, at similar k. This cancels the difference between easy
    and hard tokens, which is the largest part of the plain scheme's variance. Each mask by itself is still a uniformly
    drawn subset.
    """
    deck: list[int] = torch.randperm(n, generator=generator).tolist()
    dealt = 0
    for k, weight in strata:
        if dealt + k > n:
            left = deck[dealt:]
            # A mask must not hold a position twice, so the rest of the old deck goes to the end of the new one.
            owed = set(left)
            reshuffled: list[int] = torch.randperm(n, generator=generator).tolist()
            fresh = [position for position in reshuffled if position not in owed]
            deck, dealt = fresh + left, k - len(left)
            masked = left + deck[:dealt]
        else:
            masked = deck[dealt : dealt + k]
            dealt += k
        yield tuple(sorted(masked)), weight


def standard_error(samples: Sequence[tuple[float, Mapping[int, float]]]) -> float | None:
    """The standard error of a sum over samples of one continuation; None for a single sample.

    A sample is its weight, and the log-probabilities of the tokens that it masks, by position. Dealing cancels the
    differences between easy and hard tokens, except at positions whose total weight is not 1. So the variance has two
    parts: the differences between tokens that these weights leave, and all other differences between samples of similar
    size. The second part is computed from neighbours, as most strata have one sample. From 8 samples on, the result is
    the spread over seeds, or up to twice that if there are many samples for the number of tokens
    (`tests/likelihood/test_likelihood.py`).
    """
    if len(samples) < 2:
        return None
    weights: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for weight, log_probs in samples:
        weights.update(dict.fromkeys(log_probs, weight))
        sums.update({position: weight * log_prob for position, log_prob in log_probs.items()})
    mean = sum(sums.values()) / sum(weights.values())
    hardness = {position: sums[position] / weights[position] for position in weights}
    variance = sum((hardness[position] - mean) ** 2 * (weight - 1) ** 2 for position, weight in weights.items())
    parts = [
        (weight * len(log_probs), fmean(log_prob - hardness[position] for position, log_prob in log_probs.items()))
        for weight, log_probs in sorted(samples, key=lambda sample: len(sample[1]))
    ]
    differences = sum((a * a + b * b) * (x - y) ** 2 for (a, x), (b, y) in itertools.pairwise(parts)) / 4
    return math.sqrt(variance + differences * len(parts) / (len(parts) - 1))
