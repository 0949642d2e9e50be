"""Answer sheets: questions of one word rule, of which the first are answered and the others are filled in together."""

import re
from random import Random
from typing import Any

import datasets

from mdlm_lm_eval.tasks import prompts, rule_sets
from mdlm_lm_eval.tasks.questions import DEFAULT_SEED, WRONG_CATEGORIES, Question, in_turn, shuffled

SHEETS_OF_A_RULE = 12
SHOWN, ASKED = 1, 16
_SLOTS = re.compile("[ABC]|[^ABC]+")


def documents(**_: object) -> dict[str, datasets.Dataset]:
    """96 sheets, twelve of each rule, without a question or an example in common."""
    sheets = []
    wording = prompts.TEMPLATES[0]
    examples = {rule: _examples(rule, SHEETS_OF_A_RULE * SHOWN) for rule in WRONG_CATEGORIES}
    for number in range(SHEETS_OF_A_RULE):
        for rule in WRONG_CATEGORIES:
            shown = examples[rule][number * SHOWN :][:SHOWN]
            sets = list(rule_sets.asked_sets(rule, "smallest").values())
            asked = [one.question(rule) for one in sets[number * ASKED :][:ASKED]]
            texts = [*map(wording.solved, shown), *(wording.text(one, prompts.SLOT_MARKER) for one in asked)]
            answer = "".join(map(wording.label, asked))
            sheets.append({"prompt": wording.plain_text(texts), "answer": answer, "rule": rule})
    return {"test": datasets.Dataset.from_list(sheets)}


def _examples(rule: str, n: int) -> list[Question]:
    """Sets of the rule and two others, of all its triples in turn, of words that no question has."""
    rng = Random(f"mdlm rules examples {rule} smallest {DEFAULT_SEED}")
    words = rule_sets.Words(rule_sets.split_words(DEFAULT_SEED)[0], rng)
    triples = in_turn(rule_sets.triples_of(rule), rng)
    answers = in_turn(range(3), rng)
    found: list[Question] = []
    while len(found) < n:
        rules = shuffled([other for other in next(triples) if other != rule], rng)
        rules.insert(next(answers), rule)
        one, drawn = rule_sets.new_set(tuple(rules), words, (), reserved=False)
        words.take(drawn)
        found.append(one.question(rule))
    return found


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The share of letters that are right, and whether all are.

    All text between two letters counts as that of one slot, such as a word: later letters stay those of their slots.
    """
    given = _SLOTS.findall(results[0])
    right = sum(one == letter for one, letter in zip(given, doc["answer"], strict=False))
    return {"acc_slots": right / ASKED, "exact_match": float(results[0] == doc["answer"])}
