"""What readers of letters alone score on `mdlm_context`, without words and rules: `python -m benchmarks.surface_rules`.

Each rule takes the option of which a number is largest or smallest, the option of a letter, or one with a beginning or
an ending. The command names the rules that answer more than 45% of a task's questions; there is none.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

from mdlm_lm_eval.tasks import questions

LIMIT = 0.45

#: What a rule compares. Each makes two rules: take the option of which it is largest, or smallest.
NUMBERS: dict[str, Callable[[str], Any]] = {
    "length": len,
    "vowels": lambda word: len(re.findall("[aeiou]", word)),
    "consonants": lambda word: len(re.findall("[^aeiou]", word)),
    "share of vowels": lambda word: len(re.findall("[aeiou]", word)) / len(word),
    "syllables": lambda word: len(re.findall("[aeiouy]+", word)),
    "place in the alphabet": lambda word: word,
    "place of the second letter": lambda word: word[1:],
    "place of the last letter": lambda word: word[-1],
    "place of the last but one": lambda word: word[-2:-1],
    "place of the word read backwards": lambda word: word[::-1],
    "latest letter": max,
    "mean letter": lambda word: sum(map(ord, word)) / len(word),
    "starts with a vowel": lambda word: word[0] in "aeiou",
    "ends in a vowel": lambda word: word[-1] in "aeiou",
    "ends in a vowel or y": lambda word: word[-1] in "aeiouy",
    "doubled letters": lambda word: len(re.findall(r"(.)\1", word)),
    "repeated letters": lambda word: len(word) - len(set(word)),
    "consonants in a row": lambda word: max(map(len, re.findall("[^aeiou]+", word)), default=0),
}
NUMBERS |= {f"letter {letter}": lambda word, letter=letter: word.count(letter) for letter in "abcdefghiklmnoprstuvwy"}


def letters_in_common(options: Sequence[str]) -> list[int]:
    """How many letters each option shares with the others."""
    return [sum(len(set(option) & set(other)) for other in options) for option in options]


def middle_by_length(options: Sequence[str]) -> list[bool]:
    return [len(option) == sorted(map(len, options))[1] for option in options]


def capital(options: Sequence[str]) -> list[bool]:
    return [option[0].isupper() for option in options]


def share(values: Sequence[Any], right: int, best: Any) -> float:
    """The score of taking an option of the best value, any of equal ones."""
    return (values[right] == best) / list(values).count(best)


@cache
def numbers_of(word: str) -> dict[str, Any]:
    """What the rules compare of a word."""
    return {name: number(word) for name, number in NUMBERS.items()}


def scores(tests: Sequence[Any], *, with_capital: bool) -> dict[str, float]:
    """Accuracy of every surface rule."""
    totals: Counter[str] = Counter()
    affixes: Counter[str] = Counter()
    for question in tests:
        words = [option.lower() for option in question.options]
        right = question.answer
        numbers = [numbers_of(word) for word in words]
        columns = {name: [one[name] for one in numbers] for name in NUMBERS}
        columns |= {"letters in common": letters_in_common(words), "middle length": middle_by_length(words)}
        if with_capital:
            columns["capital"] = capital(question.options)
        for name, values in columns.items():
            totals[f"largest {name}"] += share(values, right, max(values))
            totals[f"smallest {name}"] += share(values, right, min(values))
        totals[f"option {questions.LETTERS[right]}"] += 1
        affixes_of_words = [affixes_of(word) for word in words]
        for affix in set().union(*affixes_of_words):
            has = [affix in some for some in affixes_of_words]
            affixes[f"with {affix}"] += share(has, right, True) - 1 / 3
            affixes[f"without {affix}"] += share(has, right, min(has)) - 1 / 3
    gains = {rule: gain / len(tests) + 1 / 3 for rule, gain in affixes.items()}
    return {rule: total / len(tests) for rule, total in totals.items()} | gains


@cache
def affixes_of(word: str) -> set[str]:
    """Its beginnings and endings of one to four letters."""
    return {f"{word[:n]}-" for n in range(1, 5)} | {f"-{word[-n:]}" for n in range(1, 5)}


if __name__ == "__main__":
    n_found = 0
    for rule, distractor in product(questions.WRONG_CATEGORIES, questions.DISTRACTOR_RULES):
        # A capital is left out where it is what the task asks for.
        found = scores(questions.test_questions(rule, distractor), with_capital=rule != "capitalised")
        for name, accuracy in found.items():
            if accuracy > LIMIT:
                n_found += 1
                print(f"mdlm_{rule}_{distractor}: {name} answers {100 * accuracy:.1f}%")
    print(f"{n_found} rules answer more than {100 * LIMIT:.0f}% of a task")
