"""Random walks over a part of the vocabulary: text in which neighbours predict, and nothing else does."""

from functools import cache
from random import Random

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.tasks import questions

SUCCESSOR_PROBABILITIES = (0.6, 0.2, 0.1, 0.1)
LENGTHS = (60, 360)  # tokens, the shortest and the longest
N_PIECES = 300


@cache
def walked_pieces() -> tuple[str, ...]:
    """The tokens that walks visit: some words and numbers, the letters and the pieces of the prompts."""
    some = questions.shuffled(corpus.pieces(), Random("sub"))[:N_PIECES]
    return tuple(dict.fromkeys([*some, *corpus.TEMPLATE_PIECES, *questions.LETTERS]))


@cache
def successors() -> dict[str, tuple[str, ...]]:
    """Token -> the four that may follow it, the likeliest first; always the same.

    Every token is the likeliest successor of exactly one other, so that walks visit all equally often.
    """
    rng = Random("succ")
    orders = [questions.shuffled(walked_pieces(), rng) for _ in SUCCESSOR_PROBABILITIES]
    return dict(zip(walked_pieces(), zip(*orders, strict=True), strict=True))


def random_walk(rng: Random) -> Document:
    """Tokens, each one of its predecessor's successors."""
    shortest, longest = LENGTHS
    length = shortest + questions.draw(rng, longest - shortest + 1)
    walk = [walked_pieces()[questions.draw(rng, len(walked_pieces()))]]
    while len(walk) < length:
        walk += rng.choices(successors()[walk[-1]], SUCCESSOR_PROBABILITIES)
    return Document(walk, [])
