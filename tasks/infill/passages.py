"""The middle of generated texts and programs, which follows from what stands before and after it.

The twin of a task has the same questions with the prefix alone: the difference is what the suffix is worth.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import datasets

from mdlm_lm_eval.tasks.questions import draw, load_words, shuffled

N_QUESTIONS = 200
THINGS = ("apples", "books", "coins", "eggs", "keys", "lemons", "nails", "pens", "plates", "stamps")


def sentence(rng: Random) -> tuple[str, str, str]:
    """Who gave how many of what to whom: the amounts before and after tell."""
    giver, taker, other = shuffled(load_words()["name"], rng)[:3]
    thing = THINGS[draw(rng, len(THINGS))]
    had, got = 20 + draw(rng, 70), 1 + draw(rng, 19)
    people = shuffled([giver, taker, other], rng)
    before = " ".join(f"{name} has {had} {thing}." for name in people)
    after = {giver: had - got, taker: had + got, other: had}
    ending = " ".join(f"{name} has {after[name]} {thing} now." for name in people)
    return f"{before} ", f"{giver} gives {got} {thing} to {taker}.", f" {ending}"


def line(rng: Random) -> tuple[str, str, str]:
    """A line of a small program: the two values that it returns tell sign and number."""
    first, second = 2 + draw(rng, 8), 2 + draw(rng, 8)
    sign = "+-*"[draw(rng, 3)]
    name = shuffled(("total", "price", "length", "weight", "score"), rng)[0]

    def result(x: int) -> int:
        y = x * first
        return {"+": y + second, "-": y - second, "*": y * second}[sign]

    checks = "".join(f"assert convert({x}) == {result(x)}\n" for x in (3, 7))
    before = f"def convert(x):\n    {name} = x * {first}\n    "
    return before, f"{name} = {name} {sign} {second}", f"\n    return {name}\n\n{checks}"


KINDS: dict[str, Callable[[Random], tuple[str, str, str]]] = {"sentence": sentence, "line": line}


def slot(middle: str, infill_masks: object) -> str:
    """The marker of `infill_masks` masks in place, or of as many as the tokens of the middle (`oracle`)."""
    return f"<|mask like {middle}|>" if infill_masks == "oracle" else f"<|mask:{infill_masks}|>"


def documents(
    kind: str, is_prefix_only: bool = False, infill_masks: int | str = "oracle", **_: object
) -> dict[str, datasets.Dataset]:
    """200 different questions behind one solved passage each."""
    rng = Random(f"mdlm infill {kind}")
    documents = []
    for _question in range(N_QUESTIONS):
        example, (prefix, middle, suffix) = KINDS[kind](rng), KINDS[kind](rng)
        ending = "" if is_prefix_only else slot(middle, infill_masks) + suffix
        documents.append({"prompt": f"{''.join(example)}\n\n{prefix}{ending}", "answer": middle})
    return {"test": datasets.Dataset.from_list(documents)}


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 for the middle to the letter, but for spaces at its ends.

    Behind a prefix alone a text may go on after it.
    """
    found, answer = results[0].strip(), doc["answer"].strip()
    goes_on = "<|mask" not in doc["prompt"] and found.startswith(f"{answer} ")
    return {"exact_match": float(found == answer or goes_on)}
