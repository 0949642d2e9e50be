"""Questions that only their examples answer, and what a reader of letters alone scores, without words and rules."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.results.suite import SPELLING_ALONE
from mdlm_lm_eval.tasks import baselines, prompts, questions, rule_sets
from tests.conftest import drawn_questions, load_task

RULES = tuple(questions.WRONG_CATEGORIES)
TASKS = list(product(RULES, questions.DISTRACTOR_RULES))
#: The first seed with which the words of several categories make no new set and all words are renewed.
OTHER_SEED = 12
SETS_SHA256 = "6e2c9394a7c2cfd6789bcb2570dd3a7e5b6df25c0a232fa0619e62e268b67af9"


def drawn_sets(distractor: str, seed: int = questions.DEFAULT_SEED) -> tuple[rule_sets.RuleSet, ...]:
    """As `asked_sets` asks for them, so that they are drawn once."""
    return rule_sets.test_sets(distractor, seed)


@pytest.mark.parametrize("distractor", questions.DISTRACTOR_RULES)
def test_a_set_is_asked_three_times_with_three_keys(distractor: str) -> None:
    keys: dict[str, set[int]] = {}
    options: dict[str, set[tuple[str, ...]]] = {}
    asked = [(rule, *each) for rule in RULES for each in rule_sets.asked_sets(rule, distractor).items()]
    for rule, name, one in asked:
        keys.setdefault(name, set()).add(one.question(rule).answer)
        options.setdefault(name, set()).add(one.question(rule).options)
    assert len(asked) == 8 * 1008
    assert len(keys) == 2688
    assert all(found == {0, 1, 2} for found in keys.values())
    assert all(len(found) == 1 for found in options.values())


def test_no_words_are_asked_together_twice() -> None:
    sets = [one.words for distractor in questions.DISTRACTOR_RULES for one in drawn_sets(distractor)]
    assert len(set(sets)) == 5376


@cache
def category_of(option: str) -> str:
    """The rule, other than `capitalised`, whose list holds the option."""
    words = questions.load_words()
    return next(rule for rule in RULES if rule != "capitalised" and {option, option.lower()} & set(words[rule]))


@pytest.mark.parametrize(("rule", "distractor"), TASKS)
def test_letters_partner_rules_and_words_are_balanced(rule: str, distractor: str) -> None:
    sets = rule_sets.asked_sets(rule, distractor)
    asked = {name: one.question(rule) for name, one in sets.items()}
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
        for one in drawn_sets(distractor):
            capitals = [option.istitle() for option in one.options]
            assert not any(frozenset(two) in paired for two in product(one.rules, repeat=2))
            for option, rule in zip(one.options, one.rules, strict=True):
                if rule == "capitalised":
                    assert category_of(option) not in one.rules
                    assert not frozenset((category_of(option), *one.rules)) >= {"country"}
                else:
                    assert option in words[rule] or (option.lower() in words[rule] and "country" in one.rules)
            assert sum(capitals) == (3 if "country" in one.rules else "capitalised" in one.rules)


@pytest.mark.parametrize("distractor", questions.DISTRACTOR_RULES)
def test_examples_are_different_sets_of_the_triple_without_a_word_of_a_test(distractor: str) -> None:
    tests = set().union(*(one.words for one in drawn_sets(distractor)))
    for triple in rule_sets.TRIPLES:
        examples = rule_sets.example_sets(triple, distractor, 200)
        assert examples[:7] == rule_sets.example_sets(triple, distractor, 7)
        assert len({one.words for one in examples}) == 200
        assert not tests & set().union(*(one.words for one in examples))
        assert {frozenset(one.rules) for one in examples} == {frozenset(triple)}
        assert len(set().union(*(one.words for one in examples[:10]))) == 30
        for rule in triple:
            letters = Counter(one.question(rule).answer for one in examples[:10])
            assert sorted(letters.values()) == [3, 3, 4]


def test_test_questions_are_reserved_and_examples_are_not() -> None:
    for distractor in questions.DISTRACTOR_RULES:
        sets = drawn_sets(distractor)
        examples = [one for triple in rule_sets.TRIPLES for one in rule_sets.example_sets(triple, distractor, 30)]
        assert all(questions.is_reserved_for_tests(one.question(one.rules[0])) for one in sets)
        assert not any(questions.is_reserved_for_tests(one.question(one.rules[0])) for one in examples)


def test_sets_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for distractor in questions.DISTRACTOR_RULES:
        examples = [one for triple in rule_sets.TRIPLES for one in rule_sets.example_sets(triple, distractor, 10)]
        for one in (*examples, *drawn_sets(distractor)):
            digest.update("|".join((*one.options, *one.rules)).encode() + b"\0")
    assert digest.hexdigest() == SETS_SHA256


def test_another_seed_draws_other_sets_and_examples() -> None:
    assert not {*drawn_sets("largest", OTHER_SEED)} & {*drawn_sets("largest")}
    triple = rule_sets.TRIPLES[0]
    others = rule_sets.example_sets(triple, "largest", 10, OTHER_SEED)
    assert not {*others} & {*rule_sets.example_sets(triple, "largest", 10)}


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
    assert set(document) == {"set", "question", "options", "answer", "rules"}
    assert document["rules"]["ABC".index(document["answer"])] == "verb"
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


def shown(distractor: str, **settings: object) -> dict[str, dict[str, str]]:
    """Set -> rule -> prompt, of sets whose three askings are among the first 30 questions of their tasks."""
    folder = str(tasks_path() / "rules")
    manager = TaskManager(include_path=folder, include_defaults=False, metadata={"fewshot_seed": 1, **settings})
    names = [f"mdlm_rules_{rule}_{distractor}" for rule in RULES]
    found: dict[str, dict[str, str]] = {}
    for rule, task in zip(RULES, manager.load(names)["tasks"].values(), strict=True):
        for document in task.eval_docs.select(range(30)):
            found.setdefault(document["set"], {})[rule] = task.fewshot_context(document, 50)
    return {name: prompts for name, prompts in found.items() if len(prompts) == 3}


def test_the_three_prompts_of_a_set_differ_in_the_letters_of_its_examples_alone() -> None:
    askings = shown("smallest").values()
    assert len(askings) > 60
    for three in askings:
        for texts in zip(*(prompt.split("\n\n") for prompt in three.values()), strict=True):
            assert len({re.sub(r"Answer:\[[ABC]", "Answer:[", text) for text in texts}) == 1
            letters = [text[-3] for text in texts]
            is_number = texts[0].split()[2].rstrip(",").isdigit()
            assert len(set(letters)) == (1 if is_number or not texts[0].endswith("].") else 3)


def test_labels_are_true_hidden_or_those_of_another_rule() -> None:
    """Wrong labels of a rule are the true labels of the next one: three rules have three different ones."""
    true, wrong, hidden = (shown("largest", fewshot_labels=labels) for labels in ("true", "wrong", "hidden"))
    assert len(true) > 60
    for name, prompts_of in true.items():
        assert set(wrong[name].values()) == set(prompts_of.values())
        assert not any(wrong[name][rule] == prompt for rule, prompt in prompts_of.items())
        (without,) = set(hidden[name].values())
        assert without.count("Answer:[?].") == 10
        assert re.sub(r"\[[ABC?]\]", "", without) == re.sub(r"\[[ABC]\]", "", min(prompts_of.values()))


@cache
def kind(option: str) -> str:
    """The list that holds a word; a capitalised one has another."""
    return f"{category_of(option)} {option.istitle()}"


def by_category(options: Sequence[str], examples: Sequence[rule_sets.RuleSet]) -> list[float]:
    """How often the category of each option recurs among the examples' options."""
    seen = kinds_of(tuple(examples))
    return [seen[kind(option)] for option in options]


@cache
def kinds_of(examples: tuple[rule_sets.RuleSet, ...]) -> Counter[str]:
    return Counter(kind(option) for example in examples for option in example.options)


def by_spelling(options: Sequence[str], examples: Sequence[rule_sets.RuleSet]) -> list[float]:
    """How many letters each option has in common with all options of the examples."""
    seen = letters_of(tuple(examples))
    return [sum(seen[letter] for letter in set(option.lower())) / len(set(option)) for option in options]


@cache
def letters_of(examples: tuple[rule_sets.RuleSet, ...]) -> Counter[str]:
    return Counter(letter for example in examples for option in example.options for letter in set(option.lower()))


def of_letter(letter: int) -> list[float]:
    return [float(at == letter) for at in range(3)]


#: Readers that look at no answer, and what they score options by: the options, and the examples.
BLIND: dict[str, Callable[[Sequence[str], Sequence[rule_sets.RuleSet]], Sequence[float]]] = {
    "category recurrence": by_category,
    "last relevant example": lambda options, examples: by_category(options, examples[-1:]),
    "rarest category": lambda options, examples: [-count for count in by_category(options, examples)],
    "spelling": by_spelling,
    "length": lambda options, _: [len(option) for option in options],
}
#: Readers that look at the letters of the examples' answers alone.
OF_LETTERS: dict[str, Callable[[Sequence[int]], Sequence[float]]] = {
    "most frequent letter": lambda letters: of_letter(max(range(3), key=letters.count)),
    "last letter": lambda letters: of_letter(letters[-1]),
    "letter after the last": lambda letters: of_letter((letters[-1] + 1) % 3),
}


def takes(rule: str, options: Sequence[str]) -> set[int]:
    """The options of a category, or those with a capital."""
    return {
        at for at, option in enumerate(options) if (option.istitle() if rule == "capital" else kind(option) == rule)
    }


def followed(examples: Sequence[rule_sets.RuleSet], letters: Sequence[int]) -> list[str]:
    """The rules that hold in all examples: a category, or the only capital."""
    kinds = {kind(option) for option in examples[0].options} | {"capital"}
    pairs = list(zip(examples, letters, strict=True))
    return [rule for rule in kinds if all(takes(rule, one.options) == {letter} for one, letter in pairs)]


def share(values: Sequence[Any], right: int, best: Any) -> float:
    """The score of taking an option of the best value, any of equal ones."""
    return (values[right] == best) / list(values).count(best)


@pytest.mark.parametrize("seed", [questions.DEFAULT_SEED, OTHER_SEED])
def test_only_who_reads_the_answers_is_better_than_guessing(seed: int) -> None:
    totals: Counter[str] = Counter()
    n = n_ambiguous = n_right = 0
    for rule, distractor in TASKS:
        sets = rule_sets.asked_sets(rule, distractor, seed).values()
        for triple in rule_sets.triples_of(rule):
            examples = rule_sets.example_sets(triple, distractor, 10, seed)
            letters = [example.question(rule).answer for example in examples]
            rules = followed(examples, letters)
            for one in (one for one in sets if one.triple == triple):
                key = one.question(rule).answer
                n += 1
                scored = {name: reader(one.options, examples) for name, reader in BLIND.items()}
                scored |= {name: reader(letters) for name, reader in OF_LETTERS.items()}
                totals.update({name: share(values, key, max(values)) for name, values in scored.items()})
                found = set().union(*(takes(rule, one.options) for rule in rules))
                n_ambiguous += len(found) > 1
                n_right += found == {key}
    assert n == 16 * 1008
    guessing = dict.fromkeys([*BLIND, *OF_LETTERS], 1 / 3)
    assert {name: total / n for name, total in totals.items()} == pytest.approx(guessing)
    assert (n_ambiguous, n_right) == (0, n)


# A new digest needs `python -m benchmarks.surface_rules`, which names the rules of letters that answer a task.
QUESTIONS_SHA256 = "ff378572a32bb14dfa1c334372779e3f585052c24848502cec515d175b00919f"


def test_the_readme_names_what_is_scored_without_examples() -> None:
    tests = {task: drawn_questions(*task) for task in TASKS}
    readme = (tasks_path() / "README.md").read_text(encoding="utf-8")
    for way, reader in (
        ("an option that fits any of the eight word rules", baselines.asked_by_a_rule),
        ("the option whose category differs from the others'", baselines.odd_category),
    ):
        found = [baselines.accuracy(own, reader) for own in tests.values()]
        assert f"|{way}|{fmean(found):.1f}|{min(found):.1f}|{max(found):.1f}|" in readme
    own = tests["colour", "smallest"]  # which letters help least
    assert f"|{baselines.accuracy(own, baselines.spelling(own)):.1f}|94.2|" in readme


def test_the_readme_names_what_spelling_and_the_last_examples_give() -> None:
    found = [row.strip("|").split("|") for row in baselines.rules_table().splitlines()[2:]]
    spelled, read = ([share for _, share in rows] for rows in (found[:4], found[4:]))
    readme = " ".join((tasks_path() / "README.md").read_text(encoding="utf-8").split())
    assert f"are spelt can score up to {spelled[-1]}." in readme
    assert f"{read[2]} with only the last 5 of the 50 examples, and {float(read[3]):.0f} with the last 20" in readme
    assert max(map(float, spelled)) == float(spelled[-1]) == SPELLING_ALONE


def test_questions_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for rule, distractor in TASKS:
        relevant = questions.relevant_examples(rule, distractor, 10)
        distractors = questions.distractor_examples(rule, distractor, 40)
        for question in (*relevant, *distractors, *drawn_questions(rule, distractor)):
            digest.update(prompts.TEMPLATES[0].solved(question).encode() + b"\0")
    assert digest.hexdigest() == QUESTIONS_SHA256
