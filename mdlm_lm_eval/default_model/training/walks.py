"""Random walks over the built-in model's vocabulary: text to fine-tune on that has nothing of the suite's task."""

from collections.abc import Iterator
from functools import cache
from random import Random

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.tasks import questions

SUCCESSOR_PROBABILITIES = (0.6, 0.2, 0.1, 0.1)
PROMPT_LENGTHS = (100, 300)  # tokens, the shortest and the longest
ANSWER_LENGTHS = (5, 40)


@cache
def successors() -> dict[str, tuple[str, ...]]:
    """Token -> the four that may follow it, the likeliest first; always the same.

    Every token is the likeliest successor of exactly one other, so that walks visit all equally often.
    """
    rng = Random("successors")
    orders = [questions.shuffled(corpus.pieces(), rng) for _ in SUCCESSOR_PROBABILITIES]
    return dict(zip(corpus.pieces(), zip(*orders, strict=True), strict=True))


def random_walk(length: int, rng: Random) -> list[str]:
    """`length` tokens, each one of its predecessor's successors."""
    walk = [corpus.pieces()[questions.draw(rng, len(corpus.pieces()))]]
    while len(walk) < length:
        walk += rng.choices(successors()[walk[-1]], SUCCESSOR_PROBABILITIES)
    return walk


def random_walks(seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, answer), endless: a walk and how it goes on.

    The tokenizer cuts the joined text into other tokens than the walk's in about one place of a hundred.
    """
    rng = Random(seed)
    while True:
        n_prompt, n_answer = (
            shortest + questions.draw(rng, longest - shortest + 1)
            for shortest, longest in (PROMPT_LENGTHS, ANSWER_LENGTHS)
        )
        walk = random_walk(n_prompt + n_answer, rng)
        yield "".join(walk[:n_prompt]), "".join(walk[n_prompt:])
