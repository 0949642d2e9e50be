"""The built-in model's training documents, generated from the suite's word lists.

The options of a word question follow three rules, one each. Rules and words of the options are drawn first, and which
of the three rules is asked is drawn after that, with equal chances: options alone never tell the answer. No document
contains a test question (`questions.is_reserved_for_tests`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random
from typing import TypeVar

from mdlm_lm_eval.tasks import questions, rule_sets

T = TypeVar("T")

PROPER = ("country", "name")
COMMON = tuple(category for category in questions.load_words() if category not in {*PROPER, "capitalised"})
#: Names of nonsense rules: classes of words that have nothing in common.
CLASSES = ("dax", "wug", "blick", "fep", "toma")
RULES = (*COMMON, *PROPER, "capitalised")
#: Share of the questions of real rules with a capitalised word among lowercase ones. A third of them ask for it.
CAPITALISED_SHARE = 0.5
_PAIR = {one: other for pair in rule_sets.PAIRS for one, other in (pair, pair[::-1])}
FIXED_PIECES = (
    *("Options: (A) ", "\n\nOptions: (A) ", ", (B) ", ", (C) ", "\nAnswer:[", "].", "Rule: "),
    *(" is: ", " case: ", " kind: ", "\n", "\n\n"),
)


@dataclass(frozen=True)
class Document:
    """Pieces of text that are one token each, and the indices of the answers, which the other pieces determine."""

    pieces: list[str]
    answers: list[int]


@cache
def pieces() -> tuple[str, ...]:
    """All texts that are one token: fixed pieces of the prompts, names of rules, letters, words and numbers."""
    words = [word for category in questions.load_words().values() for word in category]
    capitalised = [word.capitalize() for category in COMMON for word in questions.load_words()[category]]
    numbers = [str(number) for number in range(1, questions.LARGEST_NUMBER + 1)]
    names = (*questions.load_words(), *questions.DISTRACTOR_RULES, *CLASSES)
    return tuple(dict.fromkeys([*FIXED_PIECES, *names, *questions.LETTERS, *words, *capitalised, *numbers]))


@cache
def nonsense() -> dict[str, tuple[str, ...]]:
    """Nonsense class -> its words. Each common word of any category is in one class, which is always the same."""
    words = questions.shuffled([w for category in COMMON for w in questions.load_words()[category]], Random("nonsense"))
    return {name: tuple(words[n :: len(CLASSES)]) for n, name in enumerate(CLASSES)}


@cache
def triples(*, capitalised: bool) -> tuple[tuple[str, str, str], ...]:
    """All sets of three rules that a question can have, with or without the rule `capitalised`."""
    found = [
        triple
        for triple in combinations(RULES, 3)
        if not any(_clash(one, other) for one, other in combinations(triple, 2))
    ]
    return tuple(triple for triple in found if ("capitalised" in triple) == capitalised)


def draw_triple(rng: Random, rule: str = "") -> list[str]:
    """Draws the rules of a question's options in random order; with `rule`, as such questions have it."""
    while True:
        if rule in CLASSES:
            found = questions.shuffled(CLASSES, rng)[:3]
        else:
            found = questions.shuffled(_one_of(triples(capitalised=rng.random() < CAPITALISED_SHARE), rng), rng)
        if not rule or rule in found:
            return found


def draw_rule(rng: Random, nonsense_share: float) -> str:
    """Draws the rule of a document: one of a question's three, with equal chances."""
    if rng.random() < nonsense_share:
        return _one_of(CLASSES, rng)
    return draw_triple(rng)[0]


def word_question(rule: str, order: Sequence[str], rng: Random) -> questions.Question:
    """Draws a question that is not reserved for tests, with options of the rules `order`, one of which is asked."""
    while True:
        question = questions.Question(draw_options(order, rng), order.index(rule))
        if not questions.is_reserved_for_tests(question):
            return question


def draw_options(rules: Sequence[str], rng: Random) -> tuple[str, str, str]:
    """Draws different words, one for each rule."""
    while True:
        options = rule_sets.with_case(rules, [_word(rule, rules, rng) for rule in rules])
        if len({option.lower() for option in options}) == len(options):
            return options


def _clash(one: str, other: str) -> bool:
    """Whether a question cannot have both rules, because a word of one may also follow the other."""
    return other in (one, _PAIR.get(one)) or {one, other} == {"capitalised", "name"}


def _word(rule: str, rules: Sequence[str], rng: Random) -> str:
    """Draws a word of the rule. The category of a capitalised one clashes with no rule of the question."""
    if rule in CLASSES:
        return _one_of(nonsense()[rule], rng)
    if rule == "capitalised":
        rule = _one_of([one for one in COMMON if not any(_clash(one, other) for other in rules)], rng)
    return _one_of(questions.load_words()[rule], rng)


def _one_of(items: Sequence[T], rng: Random) -> T:
    return items[questions.draw(rng, len(items))]


def word_fact(rng: Random) -> Document:
    """ "knit is: verb." and a line break: a word's category, whether it has a capital, or its nonsense class."""
    kind = rng.random()
    if kind < 0.2:
        relation, value = " kind: ", _one_of(CLASSES, rng)
        word = _one_of(nonsense()[value], rng)
    else:
        relation, value = " is: ", _one_of((*COMMON, *PROPER) if kind > 0.45 else COMMON, rng)
        word = _one_of(questions.load_words()[value], rng)
        word = word.capitalize() if rng.random() < 0.5 else word
    if 0.2 <= kind <= 0.45:
        relation, value = " case: ", "capitalised" if word.istitle() else "lowercase"
    return Document([word, relation, value, ".", "\n"], [2])


def question_pieces(question: questions.Question, *, first: bool) -> list[str]:
    """An answered question of nine tokens. All but the first in a document begin with a blank line."""
    a, b, c = question.options
    opening = "Options: (A) " if first else "\n\nOptions: (A) "
    return [opening, a, ", (B) ", b, ", (C) ", c, "\nAnswer:[", questions.LETTERS[question.answer], "]."]


def few_shot(
    rule: str,
    n_relevant: int,
    n_distractors: int,
    rng: Random,
    *,
    named: bool = False,
    contrastive: bool = False,
) -> Document:
    """Answered questions of one word rule among answered questions of one number rule, in random order.

    `named` puts the word rule's name first; it is an answer if several relevant questions determine it. In a
    `contrastive` document, all word questions have options of the same three rules, as in the suite's sets, so that
    only the answers show which rule it is. In others the rule is the only one that all of them have.
    """
    distractor = _one_of(questions.DISTRACTOR_RULES, rng)
    triple = draw_triple(rng, rule)
    order = questions.shuffled([rule] * n_relevant + [distractor] * n_distractors, rng)
    found, answers = (["Rule: ", rule], [1] if n_relevant > 2 else []) if named else ([], [])
    for one in order:
        if one == rule:
            rules = questions.shuffled(triple, rng) if contrastive else draw_triple(rng, rule)
            question = word_question(rule, rules, rng)
        else:
            question = questions.distractor_question(one, questions.draw(rng, 3), rng)
        found += question_pieces(question, first=len(found) <= 2)
        if one == rule:
            answers.append(len(found) - 2)
    return Document(found, answers)
