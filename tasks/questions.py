"""Questions of the few-shot suite: three options, one of which a rule selects (paper, appendix C.3).

The questions of a task are drawn one after another, so that over all of them spelling tells nothing: see `Balance`.

Without lm-eval, so that the training corpus of the built-in model can keep away from the test questions.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

LETTERS = ("A", "B", "C")
LARGEST_NUMBER = 1000
N_TEST_QUESTIONS = 1000
DEFAULT_SEED = 1
N_CANDIDATES = 8

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


@cache
def load_words() -> dict[str, tuple[str, ...]]:
    """Category -> its words, in alphabetical order.

    `words/plain.txt` makes two categories: the same words with a capital and without.
    """
    folder = Path(__file__).parent / "words"
    words = {path.stem: tuple(path.read_text(encoding="utf-8").split()) for path in folder.glob("*.txt")}
    plain = words.pop("plain")
    words |= {"capitalised": tuple(map(str.capitalize, plain)), "lowercase": plain}
    return dict(sorted(words.items()))


@cache
def surface(word: str) -> tuple[int, ...]:
    """What can be read off a word's spelling alone, as numbers: its length, sound, letters and ending."""
    word = word.lower()
    vowels = [letter in "aeiou" for letter in word]
    n_vowel_groups = sum(now and not before for before, now in pairwise([False, *vowels]))
    n_doubled = sum(one == other for one, other in pairwise(word))
    return (
        *(len(word), sum(vowels), len(word) - sum(vowels), n_vowel_groups, n_doubled, len(set(word))),
        *(_alphabetical(part) for part in (word, word[1:], word[::-1], word[-2::-1], min(word), max(word))),
        *(vowels[0], vowels[-1]),
        *map(word.count, "abcdeghilmnoprstuy"),
        *map(word.endswith, ("a", "d", "e", "n", "nt", "r", "s", "t")),
    )


def _alphabetical(text: str) -> int:
    """A number that orders texts of up to 20 letters as a dictionary does."""
    return int.from_bytes(text.ljust(20).encode(), "big")


@cache
def _surfaces() -> tuple[dict[str, int], NDArray[np.int64]]:
    """The row of every word, without case, and the ranks of its `surface` among those of all words [W, S]."""
    words = sorted({word.lower() for some in load_words().values() for word in some})
    ranks = []
    for numbers in zip(*map(surface, words), strict=True):
        order = {number: rank for rank, number in enumerate(sorted({*numbers}))}
        ranks.append([order[number] for number in numbers])
    return {word: row for row, word in enumerate(words)}, np.array(ranks).T


def surface_credits(sets: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """What every surface rule scores on sets of three options, in sixths of a question more than guessing does.

    [C, 3, R]: by the set, and by which of its options is right. A surface rule takes the option whose number
    (`surface`, or letters in common with the others) is the largest, or the smallest; of equal ones it takes any.
    """
    rows, surfaces = _surfaces()
    places = [[rows[option.lower()] for option in options] for options in sets]
    common = np.array([common_letters(*options) for options in sets])
    numbers = np.concatenate([surfaces[places], common[..., None]], 2)  # [C, 3, S + 1]
    is_taken = np.stack([numbers == numbers.max(1, keepdims=True), numbers == numbers.min(1, keepdims=True)], -1)
    credits = 6 // is_taken.sum(1, keepdims=True) * is_taken - 2
    return credits.reshape(len(sets), 3, -1)


def common_letters(*options: str) -> list[int]:
    """How many letters each of three words has in common with the others."""
    a, b, c = (set(option.lower()) for option in options)
    ab, ac, bc = len(a & b), len(a & c), len(b & c)
    return [ab + ac, ab + bc, ac + bc]


class Balance:
    """Keeps every surface rule at the level of guessing over a sequence of questions.

    Of some candidates for the next question it takes the one after which the rules' surpluses over guessing are
    smallest, by the sum of their squares. Whole numbers only, so that the choice is the same on every machine.
    """

    def __init__(self) -> None:
        self._surplus = np.zeros((), np.int64)

    def take(self, candidates: Sequence[Question]) -> Question:
        """The best of the candidates, the first of equal ones, which counts from now on."""
        credits = surface_credits([question.options for question in candidates])
        totals = self._surplus + credits[range(len(candidates)), [question.answer for question in candidates]]
        best = int((totals**2).sum(1).argmin())
        self._surplus = totals[best]
        return candidates[best]


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


def in_turn(items: Sequence[T], rng: Random) -> Iterator[T]:
    """All the items in random order, again and again, so that they are balanced however many are taken.

    They are drawn as they are taken: fewer are always the beginning of more.
    """
    while True:
        yield from shuffled(items, rng)


def relevant_question(right: str, wrong: tuple[str, ...], answer: int, rng: Random) -> Question:
    """One word of category `right` at index `answer`, beside two different words of the categories `wrong`."""
    words = load_words()[right]
    return question_of(words[draw(rng, len(words))], wrong, answer, rng)


def question_of(right_word: str, wrong: tuple[str, ...], answer: int, rng: Random) -> Question:
    """`right_word` at index `answer`, beside two different words of the categories `wrong`."""
    options = [right_word]
    while len(options) < len(LETTERS):
        words = load_words()[wrong[draw(rng, len(wrong))]]
        word = words[draw(rng, len(words))]
        if all(word.lower() != option.lower() for option in options):
            options.append(word)
    options[0], options[answer] = options[answer], options[0]
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


@cache
def test_questions(rule: str, distractor: str, seed: int = DEFAULT_SEED) -> tuple[Question, ...]:  # noqa: PT028  (no pytest test)
    """The 1000 different test questions of one task, with the answers A, B and C equally often (A once more)."""
    rng = Random(f"mdlm test questions {rule} {distractor} {seed}")
    answers = shuffled((index % len(LETTERS) for index in range(N_TEST_QUESTIONS)), rng)
    return _balanced_questions(rule, answers, rng, reserved=True)


def relevant_examples(rule: str, distractor: str, n: int, seed: int = DEFAULT_SEED) -> tuple[Question, ...]:
    """The first `n` relevant in-context examples of one task, none of which may be a test question."""
    rng = Random(f"mdlm relevant examples {rule} {distractor} {seed}")
    return _balanced_questions(rule, islice(in_turn(range(len(LETTERS)), rng), n), rng, reserved=False)


def distractor_examples(rule: str, distractor: str, n: int, seed: int = DEFAULT_SEED) -> tuple[Question, ...]:
    """The first `n` distractor examples of one task."""
    rng = Random(f"mdlm distractor examples {rule} {distractor} {seed}")
    found: dict[Question, None] = {}
    for answer in islice(in_turn(range(len(LETTERS)), rng), n):
        draw_question = partial(distractor_question, distractor, answer, rng)
        found |= dict.fromkeys(_new_questions(draw_question, 1, found, reserved=False))
    return tuple(found)


def _balanced_questions(rule: str, answers: Iterable[int], rng: Random, *, reserved: bool) -> tuple[Question, ...]:
    """A question of the rule for every answer, all different, balanced on the surface.

    Every word of the rule is the right one before any is again.
    """
    balance = Balance()
    found: dict[Question, None] = {}
    for answer, right_word in zip(answers, in_turn(load_words()[rule], rng), strict=False):
        draw_question = partial(question_of, right_word, WRONG_CATEGORIES[rule], answer, rng)
        candidates = _new_questions(draw_question, N_CANDIDATES, found, reserved=reserved)
        found[balance.take(candidates)] = None
    return tuple(found)


def _new_questions(
    draw_question: Callable[[], Question], n: int, known: Container[Question], *, reserved: bool
) -> list[Question]:
    """The next `n` questions drawn that are not known and, as asked, reserved for tests or not."""
    new: list[Question] = []
    while len(new) < n:
        question = draw_question()
        if is_reserved_for_tests(question) == reserved and question not in known:
            new.append(question)
    return new
