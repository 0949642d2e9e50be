"""Answer sheets: questions of one word rule, of which the first are answered and the others are filled in together."""

from typing import Any

import datasets

from mdlm_lm_eval.tasks import prompts, rule_sets
from mdlm_lm_eval.tasks.questions import WRONG_CATEGORIES

SHEETS_OF_A_RULE = 12
SHOWN, ASKED = 1, 16


def documents(**_: object) -> dict[str, datasets.Dataset]:
    """96 sheets, twelve of each rule, without a question or an example in common."""
    sheets = []
    wording = prompts.TEMPLATES[0]
    for number in range(SHEETS_OF_A_RULE):
        for rule in WRONG_CATEGORIES:
            shown = rule_sets.relevant_examples(rule, "smallest", SHEETS_OF_A_RULE * SHOWN)[number * SHOWN :][:SHOWN]
            questions = list(rule_sets.test_questions(rule, "smallest").values())
            asked = questions[number * ASKED :][:ASKED]
            texts = [*map(wording.solved, shown), *(wording.text(one, prompts.SLOT_MARKER) for one in asked)]
            answer = "".join(map(wording.label, asked))
            sheets.append({"prompt": wording.plain_text(texts), "answer": answer, "rule": rule})
    return {"test": datasets.Dataset.from_list(sheets)}


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The share of letters that are right, and whether all are."""
    right = [given == letter for given, letter in zip(results[0].ljust(ASKED), doc["answer"], strict=False)]
    return {"acc": sum(right) / ASKED, "exact_match": float(all(right))}
