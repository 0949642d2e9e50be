"""Questions that only their examples answer, and what a reader of letters alone scores, without words and rules."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.tasks import baselines, prompts, questions, rule_sets
from tests.conftest import load_task

RULES = tuple(questions.WRONG_CATEGORIES)
TASKS = list(product(RULES, questions.DISTRACTOR_RULES))
SETS_SHA256 = "1ae26d2679baf7288d959dec83186bc035be1fc452ff5f72618d31c21f0ccb2f"


def askings(distractor: str) -> list[tuple[str, questions.Question]]:
    """Set and question of all tasks with this distractor rule."""
    return [asking for rule in RULES for asking in rule_sets.test_questions(rule, distractor).items()]


@pytest.mark.parametrize("distractor", questions.DISTRACTOR_RULES)
def test_a_set_is_asked_three_times_with_three_keys(distractor: str) -> None:
    keys: dict[str, set[int]] = {}
    options: dict[str, set[tuple[str, ...]]] = {}
    for name, question in askings(distractor):
        keys.setdefault(name, set()).add(question.answer)
        options.setdefault(name, set()).add(question.options)
    assert len(askings(distractor)) == 8 * 1008
    assert len(keys) == 2688
    assert all(found == {0, 1, 2} for found in keys.values())
    assert all(len(found) == 1 for found in options.values())
    assert len({frozenset(found) for found in options.values()}) == 2688


def category_of(option: str) -> str:
    """The rule, other than `capitalised`, whose list holds the option."""
    words = questions.load_words()
    return next(rule for rule in RULES if rule != "capitalised" and {option, option.lower()} & set(words[rule]))


@pytest.mark.parametrize(("rule", "distractor"), TASKS)
def test_letters_partner_rules_and_words_are_balanced(rule: str, distractor: str) -> None:
    asked = rule_sets.test_questions(rule, distractor)
    sets = {f"{distractor}_{n}": one for n, one in enumerate(rule_sets.test_sets(distractor))}
    assert Counter(question.answer for question in asked.values()) == {0: 336, 1: 336, 2: 336}
    partners = Counter(other for name in asked for other in sets[name].rules if other != rule)
    assert set(partners.values()) == {336}
    assert len(partners) == 6
    places = Counter((sets[name].rules.index(other), other) for name in asked for other in sets[name].rules)
    assert set(places.values()) == {112, 336}
    right = Counter(question.options[question.answer].lower() for question in asked.values())
    if rule != "capitalised":
        assert max(right.values()) - min(right.values()) <= 1


def test_each_option_follows_its_rule_alone() -> None:
    words = questions.load_words()
    paired = {frozenset(pair) for pair in rule_sets.PAIRS}
    for distractor in questions.DISTRACTOR_RULES:
        for one in rule_sets.test_sets(distractor):
            capitals = [option.istitle() for option in one.options]
            assert not any(frozenset(two) in paired for two in product(one.rules, repeat=2))
            for option, rule in zip(one.options, one.rules, strict=True):
                if rule == "capitalised":
                    assert category_of(option) not in one.rules
                    assert not frozenset((category_of(option), *one.rules)) >= {"country"}
                else:
                    assert option in words[rule] or (option.lower() in words[rule] and "country" in one.rules)
            assert sum(capitals) == (3 if "country" in one.rules else "capitalised" in one.rules)


def test_examples_are_sets_of_all_partners_and_hold_no_word_of_a_test() -> None:
    for rule, distractor in TASKS:
        tests = {option.lower() for one in rule_sets.test_sets(distractor) for option in one.options}
        examples = rule_sets.relevant_examples(rule, distractor, 12)
        assert examples[:5] == rule_sets.relevant_examples(rule, distractor, 5)
        assert not tests & {option.lower() for example in examples for option in example.options}
        assert len(set(examples)) == 12
        assert max(Counter(example.answer for example in examples).values()) == 4
        categories = Counter(
            category_of(option)
            for example in examples
            for at, option in enumerate(example.options)
            if at != example.answer and not (option.istitle() and sum(map(str.istitle, example.options)) == 1)
        )
        assert set(categories) == {other for other in RULES if other != "capitalised"} - {rule, PARTNER.get(rule)}


PARTNER = {one: other for pair in rule_sets.PAIRS for one, other in (pair, pair[::-1])}


def test_test_questions_are_reserved_and_examples_are_not() -> None:
    for rule, distractor in TASKS:
        assert all(map(questions.is_reserved_for_tests, rule_sets.test_questions(rule, distractor).values()))
        assert not any(map(questions.is_reserved_for_tests, rule_sets.relevant_examples(rule, distractor, 30)))


def test_sets_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for rule, distractor in TASKS:
        texts = rule_sets.relevant_examples(rule, distractor, 10), rule_sets.test_questions(rule, distractor).values()
        for question in (*texts[0], *texts[1]):
            digest.update(prompts.TEMPLATES[0].solved(question).encode() + b"\0")
    assert digest.hexdigest() == SETS_SHA256


def test_another_seed_draws_other_sets_and_examples() -> None:
    assert not set(rule_sets.test_sets("largest", 2)) & set(rule_sets.test_sets("largest"))
    assert rule_sets.relevant_examples("verb", "largest", 10, 2) != rule_sets.relevant_examples("verb", "largest", 10)


def test_pair_accuracy_counts_sets_that_were_asked_three_times() -> None:
    whole = [("one", True), ("two", True), ("one", True), ("two", False), ("one", True), ("two", True)]
    assert rule_sets.pair_accuracy(whole) == (0.5, 2)
    assert rule_sets.pair_accuracy([*whole, ("three", True)]) == (0.5, 2)
    with pytest.raises(ValueError, match="no set was asked under all three of its rules"):
        rule_sets.pair_accuracy(whole[:2])


def test_prompts_and_documents() -> None:
    task = load_task("mdlm_rules_verb_smallest")
    slot = load_task("mdlm_rules_verb_smallest_slot")
    assert len(task.eval_docs) == 1008
    document = task.eval_docs[0]
    assert set(document) == {"set", "question", "options", "answer"}
    prompt = task.fewshot_context(document, 50)
    parts = prompt.split("\n\n")
    assert len(parts) == 51
    assert parts[-1] == document["question"]
    assert slot.fewshot_context(document, 50) == prompt + "<|mask|>]."
    distractors = [part for part in parts if part.split()[2].rstrip(",").isdigit()]
    assert len(distractors) == 40
    block = load_task("mdlm_rules_verb_smallest_pos20").fewshot_context(document, 50).split("\n\n")
    assert sorted(block) == sorted(parts)
    assert [part in distractors for part in block] == [*[True] * 20, *[False] * 10, *[True] * 20, False]


def test_the_three_tasks_of_a_set_name_it_alike() -> None:
    of_set: dict[str, list[tuple[str, str]]] = {}
    for rule in RULES:
        for document in load_task(f"mdlm_rules_{rule}_largest").eval_docs:
            of_set.setdefault(document["set"], []).append((rule, document["question"]))
    assert all(len({text for _, text in asked}) == 1 for asked in of_set.values())
    assert all(len({rule for rule, _ in asked}) == 3 for asked in of_set.values())


LIMIT = 0.45
QUESTIONS_SHA256 = "ff378572a32bb14dfa1c334372779e3f585052c24848502cec515d175b00919f"

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


@pytest.mark.parametrize(("rule", "distractor"), TASKS)
def test_no_surface_rule_answers_a_task(rule: str, distractor: str) -> None:
    """A capital is left out where it is what the task asks for."""
    found = scores(questions.test_questions(rule, distractor), with_capital=rule != "capitalised")
    assert {name: accuracy for name, accuracy in found.items() if accuracy > LIMIT} == {}


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


def test_questions_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for rule, distractor in TASKS:
        relevant = questions.relevant_examples(rule, distractor, 10)
        distractors = questions.distractor_examples(rule, distractor, 40)
        for question in (*relevant, *distractors, *questions.test_questions(rule, distractor)):
            digest.update(prompts.TEMPLATES[0].solved(question).encode() + b"\0")
    assert digest.hexdigest() == QUESTIONS_SHA256
