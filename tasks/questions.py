"""Questions of the few-shot suite: three options, one of which a rule selects (paper, appendix C.3).

Plain Python without lm-eval, so that the training corpus of the built-in model can keep away from the test questions.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")

LETTERS = ("A", "B", "C")
LARGEST_NUMBER = 1000
N_TEST_QUESTIONS = 1000
DEFAULT_SEED = 1

#: Relevant rule -> the categories from which its wrong options come (paper, appendix C.3).
WRONG_CATEGORIES: dict[str, tuple[str, ...]] = {
    "country": ("name",),
    "capitalised": ("lowercase",),
    "verb": ("adjective", "preposition", "object"),
    "adjective": ("verb", "preposition", "object"),
    "animal": ("object", "fruit", "sport"),
    "colour": ("animal", "object"),
    "emotion": ("colour", "object", "animal"),
    "object": ("emotion", "colour", "adjective"),
}
DISTRACTOR_RULES = ("smallest", "largest")


@dataclass(frozen=True)
class Question:
    """Three options and the index of the right one."""

    options: tuple[str, str, str]
    answer: int

    def text(self, *, slot: str) -> str:
        """The question with `slot` (an answer letter or a slot marker) between its square brackets."""
        a, b, c = self.options
        return f"Options: (A) {a}, (B) {b}, (C) {c}\nAnswer:[{slot}]."


@cache
def load_words() -> dict[str, tuple[str, ...]]:
    """Category -> its words, in the order of `words/{category}.txt`."""
    folder = Path(__file__).parent / "words"
    return {path.stem: tuple(path.read_text(encoding="utf-8").split()) for path in sorted(folder.glob("*.txt"))}


def draw(rng: Random, n: int) -> int:
    """An integer in 0..n-1, from `random()` alone, the only draw that Python promises to keep in every version."""
    return int(rng.random() * n)


def shuffled(items: Iterable[T], rng: Random) -> list[T]:
    """The items in random order (Fisher-Yates), the same in every Python version."""
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        other = draw(rng, last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def relevant_question(right: str, wrong: tuple[str, ...], answer: int, rng: Random) -> Question:
    """One word of category `right` at index `answer`, beside two different words of the categories `wrong`."""
    words = load_words()
    options: list[str] = []
    for index in range(len(LETTERS)):
        word = ""
        while not word or word in options:
            pool = words[right if index == answer else wrong[draw(rng, len(wrong))]]
            word = pool[draw(rng, len(pool))]
        options.append(word)
    return Question((options[0], options[1], options[2]), answer)


def distractor_question(rule: str, answer: int, rng: Random) -> Question:
    """Three different integers of 1..1000, the smallest or the largest of which stands at index `answer`."""
    numbers: list[int] = []
    while len(numbers) < len(LETTERS):
        number = 1 + draw(rng, LARGEST_NUMBER)
        if number not in numbers:
            numbers.append(number)
    extreme = min(numbers) if rule == "smallest" else max(numbers)
    at = numbers.index(extreme)
    numbers[at], numbers[answer] = numbers[answer], numbers[at]
    a, b, c = map(str, numbers)
    return Question((a, b, c), answer)


def is_reserved_for_tests(question: Question) -> bool:
    """Whether this question may be a test question.

    A quarter of all option triples, told by a hash, is reserved for tests: test questions come from it alone and a
    training corpus leaves it out, so that no test question occurs in training whatever the suite's seed.
    """
    return hashlib.sha256("|".join(question.options).encode()).digest()[0] < 64


def test_questions(rule: str, distractor: str, seed: int = DEFAULT_SEED) -> list[Question]:  # noqa: PT028  (no pytest test)
    """The 1000 different test questions of one task, with the answers A, B and C equally often (A once more)."""
    rng = Random(f"mdlm test questions {rule} {distractor} {seed}")
    questions: dict[Question, None] = {}
    for answer in shuffled((index % len(LETTERS) for index in range(N_TEST_QUESTIONS)), rng):
        n_found = len(questions)
        while len(questions) == n_found:
            question = relevant_question(rule, WRONG_CATEGORIES[rule], answer, rng)
            if is_reserved_for_tests(question):
                questions[question] = None
    return list(questions)


def relevant_examples(rule: str, distractor: str, n: int, seed: int = DEFAULT_SEED) -> list[Question]:
    """The first `n` relevant in-context examples of one task, none of which may be a test question."""
    rng = Random(f"mdlm relevant examples {rule} {distractor} {seed}")
    return _examples(lambda answer: relevant_question(rule, WRONG_CATEGORIES[rule], answer, rng), n, rng)


def distractor_examples(rule: str, distractor: str, n: int, seed: int = DEFAULT_SEED) -> list[Question]:
    """The first `n` distractor examples of one task."""
    rng = Random(f"mdlm distractor examples {rule} {distractor} {seed}")
    return _examples(lambda answer: distractor_question(distractor, answer, rng), n, rng)


def _examples(draw_question: Callable[[int], Question], n: int, rng: Random) -> list[Question]:
    """`n` different questions; every three in turn have the answers A, B and C in random order.

    So answers are balanced whatever `n` is, and fewer examples are always the beginning of more.
    """
    questions: dict[Question, None] = {}
    answers: list[int] = []
    while len(questions) < n:
        answers = answers or shuffled(range(len(LETTERS)), rng)
        question = draw_question(answers[-1])
        if question not in questions and not is_reserved_for_tests(question):
            questions[question] = None
            answers.pop()
    return list(questions)
