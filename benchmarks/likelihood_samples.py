"""How far a likelihood's estimate is from its exact value, by the number of samples: ours, LLaDA's, independent draws.

    OMP_NUM_THREADS=1 python -m benchmarks.likelihood_samples --csv benchmarks/likelihood_samples.csv

The built-in model scores 4 continuations of 12 tokens of random walks, which it was trained on. It scores each of the
4,095 masks once; all estimates are sums over these. *LLaDA's* is that of its `get_log_likelihood`, which dLLM's copies,
in batches of 32. A pass is a distinct canvas.
"""

import argparse
import csv
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

from mdlm_lm_eval import load
from mdlm_lm_eval.likelihood.corruptions import Corruption, monte_carlo_corruptions
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.options import LikelihoodOptions
from mdlm_lm_eval.results.text import markdown_table
from training.walks import SUCCESSOR_PROBABILITIES, random_walk, successors

LENGTH, SAMPLES, BATCH = 12, (32, 64, 128), 32
HEADER = ("scheme", "samples", "passes", "error, nats", "same best choice (%)")
Mask = tuple[int, ...]
Scheme = Callable[[int, int], list[tuple[Mask, float]]]


def ours(samples: int, seed: int) -> list[tuple[Mask, float]]:
    """Masks and weights of `likelihood=mc`."""
    drawn = monte_carlo_corruptions(LENGTH, samples, torch.Generator().manual_seed(seed))
    return [(corruption.masked, corruption.weight) for corruption in drawn]


def independent(samples: int, seed: int) -> list[tuple[Mask, float]]:
    """Each sample draws its number of masks, and then their positions."""
    draw = Random(seed)
    sizes = [draw.randint(1, LENGTH) for _ in range(samples)]
    return [(tuple(sorted(draw.sample(range(LENGTH), k))), LENGTH / k / samples) for k in sizes]


def of_llada(samples: int, seed: int) -> list[tuple[Mask, float]]:
    """A batch begins with a drawn number of masks, and its further numbers follow in equal steps."""
    draw, found = Random(seed), []
    for _ in range(samples // BATCH):
        first = draw.randint(1, LENGTH)
        steps = torch.linspace(first, first + (BATCH - 1) * (LENGTH / BATCH), BATCH).round().long()
        for k in ((steps - 1) % LENGTH + 1).tolist():
            found.append((tuple(sorted(draw.sample(range(LENGTH), k))), LENGTH / k / samples))
    return found


SCHEMES: dict[str, Scheme] = {"ours": ours, "LLaDA's": of_llada, "independent": independent}


def continued(token: str, length: int, draw: Random) -> list[str]:
    """Tokens of a walk after `token`."""
    walk = [token]
    while len(walk) <= length:
        walk += draw.choices(successors()[walk[-1]], SUCCESSOR_PROBABILITIES)
    return walk[1:]


def every_mask(_request: object, _options: object) -> list[Corruption]:
    return [
        Corruption(masked, masked, 1.0 / (k * math.comb(LENGTH, k)))
        for k in range(1, LENGTH + 1)
        for masked in itertools.combinations(range(LENGTH), k)
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--csv", type=Path, help="a file for the table")
    given = parser.parse_args()
    denoiser, tokenizer = load("built-in")
    ids, draw = tokenizer.get_vocab(), Random(0)
    exact: list[list[float]] = []
    sums: list[list[dict[Mask, float]]] = []
    for _ in range(given.questions):
        pieces = list(random_walk(24, draw).pieces)
        choices = [continued(pieces[-1], LENGTH, draw) for _ in range(4)]
        context = [ids[piece] for piece in pieces]
        requests = [LikelihoodRequest(context, [ids[piece] for piece in choice], 0) for choice in choices]
        options = LikelihoodOptions(check_greedy=False)
        found = score(denoiser, requests, options, batch_size=64, max_length=512, corruptions_of=every_mask)
        exact.append([each.total for each in found])
        sums.append([])
        for each in found:
            of_masks: dict[Mask, float] = {}
            for term in each.terms:
                masked = term.sample[1:]
                of_masks[masked] = of_masks.get(masked, 0.0) + term.log_prob
            sums[-1].append(of_masks)
    rows = []
    for name, scheme in SCHEMES.items():
        for samples in SAMPLES:
            squares, same, passes = [], [], []
            for question, (totals, tables) in enumerate(zip(exact, sums, strict=True)):
                for seed in range(given.seeds):
                    estimates = []
                    for choice, table in enumerate(tables):
                        drawn = scheme(samples, (seed * given.questions + question) * 4 + choice)
                        estimates.append(sum(weight * table[masked] for masked, weight in drawn))
                        passes.append(len({masked for masked, _ in drawn}))
                    squares += [(a - b) ** 2 for a, b in zip(estimates, totals, strict=True)]
                    same.append(estimates.index(max(estimates)) == totals.index(max(totals)))
            error, share = math.sqrt(sum(squares) / len(squares)), sum(same) / len(same)
            rows.append([name, str(samples), f"{sum(passes) / len(passes):.1f}", f"{error:.2f}", f"{100 * share:.1f}"])
    print(markdown_table(HEADER, rows))
    if given.csv:
        with given.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
