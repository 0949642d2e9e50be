"""What a reader of letters alone scores on the few-shot suite, who knows no word and no rule."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from mdlm_lm_eval.tasks import baselines, prompts, questions

from mdlm_lm_eval import tasks_path

LIMIT = 0.45
QUESTIONS_SHA256 = "ff378572a32bb14dfa1c334372779e3f585052c24848502cec515d175b00919f"
TASKS = [(rule, distractor) for rule in questions.WRONG_CATEGORIES for distractor in questions.DISTRACTOR_RULES]

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


def scores(tests: Sequence[Any], *, with_capital: bool) -> dict[str, float]:
    """Accuracy of every surface rule."""
    totals: Counter[str] = Counter()
    affixes: Counter[str] = Counter()
    for question in tests:
        words = [option.lower() for option in question.options]
        right = question.answer
        columns = {name: list(map(number, words)) for name, number in NUMBERS.items()}
        columns |= {"letters in common": letters_in_common(words), "middle length": middle_by_length(words)}
        if with_capital:
            columns["capital"] = capital(question.options)
        for name, values in columns.items():
            totals[f"largest {name}"] += share(values, right, max(values))
            totals[f"smallest {name}"] += share(values, right, min(values))
        totals[f"option {questions.LETTERS[right]}"] += 1
        for affix in {affix for word in words for affix in affixes_of(word)}:
            has = [affix in affixes_of(word) for word in words]
            affixes[f"with {affix}"] += share(has, right, True) - 1 / 3
            affixes[f"without {affix}"] += share(has, right, min(has)) - 1 / 3
    gains = {rule: gain / len(tests) + 1 / 3 for rule, gain in affixes.items()}
    return {rule: total / len(tests) for rule, total in totals.items()} | gains


def affixes_of(word: str) -> set[str]:
    """Its beginnings and endings of one to four letters."""
    return {f"{word[:n]}-" for n in range(1, 5)} | {f"-{word[-n:]}" for n in range(1, 5)}


@cache
def best_rule(rule: str, distractor: str) -> tuple[str, float]:
    """The surface rule of the highest accuracy in a task. A capital is left out where it is what the task asks for."""
    found = scores(questions.test_questions(rule, distractor), with_capital=rule != "capitalised")
    best = max(found, key=lambda name: (found[name], name))
    return best, found[best]


@pytest.mark.parametrize(("rule", "distractor"), TASKS)
def test_no_surface_rule_answers_a_task(rule: str, distractor: str) -> None:
    name, accuracy = best_rule(rule, distractor)
    assert accuracy <= LIMIT, name


def test_the_readme_names_what_is_scored_without_examples() -> None:
    readme = (tasks_path() / "README.md").read_text(encoding="utf-8")
    for rule, distractor in TASKS:
        tests = questions.test_questions(rule, distractor)
        known = baselines.accuracy(tests, baselines.asked_by_a_rule)
        odd = baselines.accuracy(tests, baselines.odd_category)
        assert f"|{rule}_{distractor}|{known:.1f}|{odd:.1f}|" in readme
    tests = questions.test_questions("emotion", "smallest")
    learner = baselines.accuracy(tests, baselines.spelling(tests))
    assert re.search(rf"\|emotion_smallest\|[\d.]+\|[\d.]+\|{learner:.1f}\|", readme)


def test_a_rule_that_tells_is_found() -> None:
    long_is_right = [
        questions.Question(("cat", "dog", "elephant"), 2),
        questions.Question(("giraffe", "ant", "hen"), 0),
    ]
    assert scores(long_is_right, with_capital=True)["largest length"] == 1
    assert scores(long_is_right, with_capital=True)["smallest capital"] == pytest.approx(1 / 3)
    ending = [questions.Question(("judo", "rowing", "golf"), 1)] * 2
    found = scores(ending, with_capital=True)
    assert found["with -ing"] == 1
    assert found["without -ing"] == 0
    assert found["with j-"] == 0
    assert found["without j-"] == 0.5


def test_questions_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for rule, distractor in TASKS:
        relevant = questions.relevant_examples(rule, distractor, 10)
        distractors = questions.distractor_examples(rule, distractor, 40)
        for question in (*relevant, *distractors, *questions.test_questions(rule, distractor)):
            digest.update(prompts.TEMPLATES[0].solved(question).encode() + b"\0")
    assert digest.hexdigest() == QUESTIONS_SHA256


def test_every_word_is_right_equally_often() -> None:
    for rule in questions.WRONG_CATEGORIES:
        tests = questions.test_questions(rule, "largest")
        counts = Counter(question.options[question.answer] for question in tests)
        assert set(counts) == set(questions.load_words()[rule])
        assert max(counts.values()) - min(counts.values()) <= 1


def test_capitalised_words_take_either_role() -> None:
    words = questions.load_words()
    assert words["capitalised"] == tuple(word.capitalize() for word in words["lowercase"])
    right, wrong = Counter[str](), Counter[str]()
    for question in questions.test_questions("capitalised", "largest"):
        assert len({option.lower() for option in question.options}) == 3
        for index, option in enumerate(question.options):
            assert option.istitle() == (index == question.answer)
            (right if index == question.answer else wrong)[option.lower()] += 1
    assert set(right) == set(wrong) == set(words["lowercase"])
