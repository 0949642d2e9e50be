"""The built-in model's training documents, generated from the suite's word lists.

No document holds a test question (`questions.is_reserved_for_tests`).
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from mdlm_lm_eval.tasks import questions

RULE_NAMES = (*questions.load_words(), *questions.DISTRACTOR_RULES)
N_NUMBER_QUESTIONS = (15, 50)  # of a document of them alone, the fewest and the most
TEMPLATE_PIECES = (
    "Options: (A) ",
    "\n\nOptions: (A) ",
    ", (B) ",
    ", (C) ",
    "\nAnswer:[",
    "].",
    "Rule: ",
    " is: ",
    "\n",
    "\n\n",
)


@dataclass(frozen=True)
class Document:
    """Pieces of text, each one token, and the indices of those that the others determine."""

    pieces: list[str]
    answers: list[int]


@cache
def pieces() -> tuple[str, ...]:
    """Every text that is one token: fixed pieces of the prompts, rules' names, letters, words and numbers."""
    words = [word for category in questions.load_words().values() for word in category]
    numbers = [str(number) for number in range(1, questions.LARGEST_NUMBER + 1)]
    return tuple(dict.fromkeys([*TEMPLATE_PIECES, *RULE_NAMES, *questions.LETTERS, *words, *numbers]))


def training_question(right: str, wrong: tuple[str, ...], rng: Random) -> questions.Question:
    """A question of the rule `right` that is not reserved for tests."""
    while True:
        answer = questions.draw(rng, 3)
        if right in questions.DISTRACTOR_RULES:
            return questions.distractor_question(right, answer, rng)
        question = questions.relevant_question(right, wrong, answer, rng)
        if not questions.is_reserved_for_tests(question):
            return question


def draw_rule(rng: Random) -> tuple[str, tuple[str, ...]]:
    """A category and those that its wrong options come from: half of the time as in the suite, else any others."""
    if rng.random() < 0.5:
        right = list(questions.WRONG_CATEGORIES)[questions.draw(rng, len(questions.WRONG_CATEGORIES))]
        return right, questions.WRONG_CATEGORIES[right]
    categories = list(questions.load_words())
    right = categories[questions.draw(rng, len(categories))]
    others = [category for category in categories if category != right]
    return right, tuple(others[questions.draw(rng, len(others))] for _ in range(1 + questions.draw(rng, 3)))


def word_fact(rng: Random) -> Document:
    """ "knit is: verb." and a line break: what category a word is of."""
    words = questions.load_words()
    category = list(words)[questions.draw(rng, len(words))]
    word = words[category][questions.draw(rng, len(words[category]))]
    return Document([word, " is: ", category, ".", "\n"], [2])


def question_pieces(question: questions.Question, *, first: bool) -> list[str]:
    """An answered question, nine tokens; all but the first of a document begin with the blank line before them."""
    a, b, c = question.options
    opening = "Options: (A) " if first else "\n\nOptions: (A) "
    return [opening, a, ", (B) ", b, ", (C) ", c, "\nAnswer:[", questions.LETTERS[question.answer], "]."]


def few_shot(n_relevant: int, n_distractors: int, rng: Random, *, named: bool) -> Document:
    """Answered questions of one word rule among answered questions of one number rule, in random order.

    `named` puts the word rule's name in front.
    """
    right, wrong = draw_rule(rng)
    distractor = questions.DISTRACTOR_RULES[questions.draw(rng, 2)]
    is_relevant = [True] * n_relevant + [False] * n_distractors
    rng.shuffle(is_relevant)
    pieces, answers = (["Rule: ", right], [1]) if named else ([], [])
    for relevant in is_relevant:
        question = training_question(right if relevant else distractor, wrong, rng)
        pieces += question_pieces(question, first=not pieces)
        if relevant:
            answers.append(len(pieces) - 2)
    return Document(pieces, answers)


def number_questions(n: int, rng: Random) -> Document:
    """`n` answered questions of one number rule; the last answer is the one that the others determine."""
    rule = questions.DISTRACTOR_RULES[questions.draw(rng, 2)]
    pieces: list[str] = []
    for _ in range(n):
        pieces += question_pieces(training_question(rule, (), rng), first=not pieces)
    return Document(pieces, [len(pieces) - 2])
