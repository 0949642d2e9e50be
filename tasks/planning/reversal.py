"""A fact is given as "the teacher of B is A" and asked for from A, the other way round (arXiv:2309.12288, in context).

The control asks it in the order in which it is given.
"""

from random import Random
from typing import Any

import datasets

from mdlm_lm_eval.tasks.questions import draw, load_words, shuffled

N_QUESTIONS, N_FACTS, N_SHOTS = 200, 6, 2
RELATIONS = ("teacher", "doctor", "cousin", "lawyer", "coach", "landlord", "guide", "editor")


def documents(is_reversed: bool, **_: object) -> dict[str, datasets.Dataset]:
    """200 questions about six facts each, behind two solved ones; both orders ask about the same facts."""
    rng = Random("mdlm reversal")
    documents = []
    for _question in range(N_QUESTIONS):
        *solved, (text, answer) = (passage(is_reversed, rng) for _ in range(N_SHOTS + 1))
        shots = [f"{facts} {name}." for facts, name in solved]
        documents.append({"prompt": "\n\n".join([*shots, text]), "answer": answer})
    return {"test": datasets.Dataset.from_list(documents)}


def passage(is_reversed: bool, rng: Random) -> tuple[str, str]:
    """Facts and the beginning of one that is asked for, with the name that ends it."""
    relation = RELATIONS[draw(rng, len(RELATIONS))]
    names = shuffled(load_words()["name"], rng)[: 2 * N_FACTS]
    pairs = list(zip(names[::2], names[1::2], strict=True))
    facts = " ".join(f"The {relation} of {a} is {b}." for a, b in pairs)
    a, b = pairs[draw(rng, N_FACTS)]
    return (f"{facts}\n{b} is the {relation} of", a) if is_reversed else (f"{facts}\nThe {relation} of {a} is", b)


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 for the name, with or without the full stop."""
    return {"exact_match": float(results[0].strip().removesuffix(".") == doc["answer"])}
