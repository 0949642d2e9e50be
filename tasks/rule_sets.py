"""Sets of options that only their examples' answers answer: the group `mdlm_rules`.

A set holds one word of each of three rules and is asked three times, once under each of them, so that its key is
another option each time. Its examples are sets of the same three rules, and their options are the same in all three
askings: only the letters of their answers differ. Whoever ignores these answers exactly one of three right, whatever
they know of words and categories.

Without lm-eval, as `questions`.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations, product
from random import Random

import numpy as np

from .questions import (
    DEFAULT_SEED,
    DISTRACTOR_RULES,
    N_CANDIDATES,
    WRONG_CATEGORIES,
    Question,
    draw,
    in_turn,
    is_reserved_for_tests,
    load_words,
    shuffled,
    surface_credits,
)

#: Two rules that no set asks together, because a word of one could be argued to follow the other: the name of a country
#: has a capital, colours are adjectives, many emotions are verbs (`fear`), an animal is a thing.
PAIRS = (("country", "capitalised"), ("adjective", "colour"), ("emotion", "verb"), ("animal", "object"))
#: The rules of a set: one of each of three pairs.
TRIPLES = tuple(triple for pairs in combinations(PAIRS, 3) for triple in product(*pairs))
_TRIPLE_OF = {frozenset(triple): triple for triple in TRIPLES}
N_ROUNDS = 84  # of one set of every triple: each of the six orders of its options 14 times
N_TEST_QUESTIONS = N_ROUNDS * len(TRIPLES) * 3 // len(WRONG_CATEGORIES)


#: Wrong labels come from the next rule of the triple, the last one's from the first.
_NEXT = {(triple, rule): triple[(at + 1) % 3] for triple in TRIPLES for at, rule in enumerate(triple)}
N_TRIES = 100  # draws of a set before the words of its categories count as used up


@dataclass(frozen=True)
class RuleSet:
    """Three options, and the rules that they follow, one each."""

    options: tuple[str, str, str]
    rules: tuple[str, str, str]

    def question(self, rule: str) -> Question:
        """The set asked under one of its rules."""
        return Question(self.options, self.rules.index(rule))

    @property
    def triple(self) -> tuple[str, ...]:
        """Its rules as they stand in `TRIPLES`."""
        return _TRIPLE_OF[frozenset(self.rules)]

    @property
    def words(self) -> frozenset[str]:
        """Its options without order and case, by which sets are told apart."""
        return frozenset(option.lower() for option in self.options)


def wrong_rule(rule: str, triple: tuple[str, ...]) -> str:
    """The rule of the triple whose answers wrong labels show where `rule` is asked."""
    return _NEXT[triple, rule]


def triples_of(rule: str) -> list[tuple[str, ...]]:
    """The twelve triples that hold a rule."""
    return [triple for triple in TRIPLES if rule in triple]


class Words:
    """Draws words: each of a category is taken once before any is again, as itself and as a capitalised option."""

    def __init__(self, words: dict[str, Sequence[str]], rng: Random) -> None:
        self._rng = rng
        self._all = words | {f"capitalised {category}": some for category, some in words.items()}
        self._left = {pool: list(some) for pool, some in self._all.items()}

    def draw(self, rules: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Pool and word for each rule of a set; nothing is taken yet.

        A capitalised option comes from the pair of rules that the set does not ask.
        """
        found = []
        for rule in rules:
            pool = rule
            if rule == "capitalised":
                others = next(pair for pair in PAIRS if not set(pair) & set(rules))
                pool = f"capitalised {others[draw(self._rng, 2)]}"
            words = self._left[pool]
            found.append((pool, words[draw(self._rng, len(words))]))
        return tuple(found)

    def take(self, drawn: Iterable[tuple[str, str]]) -> None:
        """Takes these words from what is left of their pools."""
        for pool, word in drawn:
            self._left[pool].remove(word)
            if not self._left[pool]:
                self._left[pool] = list(self._all[pool])

    def renew(self) -> None:
        """Puts all words back into their pools."""
        self._left = {pool: list(some) for pool, some in self._all.items()}


def with_case(rules: Sequence[str], words: Sequence[str]) -> tuple[str, str, str]:
    """The words of a set as its options: all with a capital beside a country, else only the one of `capitalised`."""
    a, b, c = (
        word.capitalize() if rule == "capitalised" or {"country", "name"} & set(rules) else word
        for rule, word in zip(rules, words, strict=True)
    )
    return a, b, c


def split_words(seed: int) -> tuple[dict[str, Sequence[str]], dict[str, Sequence[str]]]:
    """Words for examples, a third of each category, and those for test questions."""
    examples, tests = {}, {}
    for category, words in load_words().items():
        if category in WRONG_CATEGORIES and category != "capitalised":
            order = shuffled(words, Random(f"mdlm rules words {category} {seed}"))
            examples[category], tests[category] = order[: len(order) // 3], order[len(order) // 3 :]
    return examples, tests


@cache
def test_sets(distractor: str, seed: int = DEFAULT_SEED) -> tuple[RuleSet, ...]:  # noqa: PT028  (no pytest test)
    """The sets of one distractor rule, of other words than any set of the other: round after round of one per triple.

    Of some candidates for the next set the one is taken after which every surface rule (see `questions.Balance`) stays
    closest to guessing under each of the rules.
    """
    rng = Random(f"mdlm rules sets {distractor} {seed}")
    words = Words(split_words(seed)[1], rng)
    orders = {triple: in_turn(tuple(permutations(triple)), rng) for triple in TRIPLES}
    surplus = dict.fromkeys(WRONG_CATEGORIES, np.zeros((), np.int64))
    first = DISTRACTOR_RULES[0]
    known = set() if distractor == first else {one.words for one in test_sets(first, seed)}
    found = []
    for _ in range(N_ROUNDS):
        for triple in shuffled(TRIPLES, rng):
            rules = next(orders[triple])
            candidates = [new_set(rules, words, known, reserved=True) for _ in range(N_CANDIDATES)]
            credits = surface_credits([one.options for one, _ in candidates])
            totals = np.stack([surplus[rule] + credits[:, at] for at, rule in enumerate(rules)], 1)  # [C, 3, R]
            best = int((totals**2).sum((1, 2)).argmin())
            surplus |= zip(rules, totals[best], strict=True)
            chosen, drawn = candidates[best]
            words.take(drawn)
            known.add(chosen.words)
            found.append(chosen)
    return tuple(found)


def asked_sets(rule: str, distractor: str, seed: int = DEFAULT_SEED) -> dict[str, RuleSet]:
    """Name -> set of one task's questions; the same set has the same name in the tasks of its other rules."""
    sets = enumerate(test_sets(distractor, seed))
    return {f"{distractor}_{number}": one for number, one in sets if rule in one.rules}


@cache
def example_sets(triple: tuple[str, ...], distractor: str, n: int, seed: int = DEFAULT_SEED) -> tuple[RuleSet, ...]:
    """The first `n` example sets of a triple, of words that no test question has, all of them different words.

    In every three in a row, each of the triple's rules has its word in each place once.
    """
    rng = Random(f"mdlm rules examples {distractor} {' '.join(triple)} {seed}")
    words = Words(split_words(seed)[0], rng)
    orders = _orders(triple, rng)
    found: list[RuleSet] = []
    known: set[frozenset[str]] = set()
    while len(found) < n:
        one, drawn = new_set(next(orders), words, known, reserved=False)
        words.take(drawn)
        known.add(one.words)
        found.append(one)
    return tuple(found)


def _orders(triple: tuple[str, ...], rng: Random) -> Iterator[tuple[str, ...]]:
    """Orders of three rules, in threes that are rotations of each other."""
    a, b, c = triple
    rotations = ((a, b, c), (b, c, a), (c, a, b)), ((a, c, b), (c, b, a), (b, a, c))
    for three in in_turn(rotations, rng):
        yield from shuffled(three, rng)


def new_set(
    rules: tuple[str, ...], words: Words, known: Container[frozenset[str]], *, reserved: bool
) -> tuple[RuleSet, tuple[tuple[str, str], ...]]:
    """A set of words that are not known and, as asked, reserved for tests or not; and what was drawn for it."""
    a, b, c = rules
    tries = 0
    while True:
        drawn = words.draw(rules)
        one = RuleSet(with_case(rules, [word for _, word in drawn]), (a, b, c))
        if is_reserved_for_tests(one.question(a)) == reserved and one.words not in known:
            return one, drawn
        tries += 1
        if tries % N_TRIES == 0:  # the last words of several categories may make no new set
            words.renew()


def pair_accuracy(askings: Iterable[tuple[str, bool]]) -> tuple[float, int]:
    """Share of the sets all of whose three askings are right, and the number of sets.

    `askings` are the set and the score of every question, of all tasks together; sets that were not asked three times
    (`--limit`) do not count. Raises ValueError where none was.
    """
    scores: dict[str, list[bool]] = {}
    for name, right in askings:
        scores.setdefault(name, []).append(right)
    complete = [all(right) for right in scores.values() if len(right) == 3]
    if not complete:
        raise ValueError("no set was asked under all three of its rules")
    return sum(complete) / len(complete), len(complete)
