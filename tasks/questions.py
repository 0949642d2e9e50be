"""Questions of the few-shot suite: three options, one of which a rule selects (paper, appendix C.3).

Plain Python without lm-eval, so that the training corpus of the built-in model can keep away from the test questions.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

LETTERS = ("A", "B", "C")
LARGEST_NUMBER = 1000

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
    """An integer in 0..n-1, from `random()` alone: the only draw that Python promises to keep the same in every version."""
    return int(rng.random() * n)


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
