"""Random walks over a part of the vocabulary: text in which only the neighbours of a token predict it."""

from functools import cache
from random import Random

from mdlm_lm_eval.tasks import questions
from training import corpus
from training.corpus import Document

SUCCESSOR_PROBABILITIES = (0.6, 0.2, 0.1, 0.1)
N_PIECES = 300


@cache
def successors() -> dict[str, tuple[str, ...]]:
    """Token -> the four tokens that may follow it, the likeliest first. They are always the same.

    Every token is the likeliest successor of exactly one other, so that walks visit all equally often.
    """
    rng = Random("walks")
    walked = tuple(dict.fromkeys([*questions.shuffled(corpus.pieces(), rng)[:N_PIECES], *corpus.FIXED_PIECES, *"ABC"]))
    orders = [questions.shuffled(walked, rng) for _ in SUCCESSOR_PROBABILITIES]
    return dict(zip(walked, zip(*orders, strict=True), strict=True))


def random_walk(length: int, rng: Random) -> Document:
    """A document in which each token is a successor of the one before it."""
    walk = [list(successors())[questions.draw(rng, len(successors()))]]
    while len(walk) < length:
        walk += rng.choices(successors()[walk[-1]], SUCCESSOR_PROBABILITIES)
    return Document(walk, [])
