"""Documents of the lists model: lists, squares, walks, middles and facts, asked as the generated tasks ask them.

No passage that a task asks is in them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerFast

from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.tasks.infill import passages
from mdlm_lm_eval.tasks.parallel import lists
from mdlm_lm_eval.tasks.planning import reversal

N_BATCHES = 4  # of a step
SLOTS = (16, 32, 64)  # masks of a slot, beside as many as its tokens


@dataclass(frozen=True)
class Passage:
    """What stands before an answer, the answer, what stands behind it, and how the task's documents put it."""

    before: str
    answer: str
    after: str = ""
    test: str = ""


@dataclass(frozen=True)
class Kind:
    """Passages of one task: how they are drawn, and what the task asks for."""

    draw: Callable[[Random], Passage]
    tests: Callable[[], dict[str, Any]]  # the task's documents
    canvas: int  # masks of an answer, 0 for as many as its tokens
    n_shots: int = 1
    share: float = 1.0  # of the documents


@dataclass(frozen=True)
class Stage:
    """Steps on documents of these kinds: passages alone, or half of them behind solved ones as the tasks ask them."""

    kinds: tuple[str, ...]
    n_steps: int
    n_documents: int  # of a step
    is_asked: bool = False  # its learning rates fall to 0


def _of_a_list(operation: str, lengths: Sequence[int], rng: Random) -> Passage:
    puzzle = lists.draw_puzzle(operation, lengths, rng)
    return Passage(lists.question(operation, puzzle), " " + ", ".join(lists.an_answer(operation, puzzle, rng)))


def _walk(rng: Random) -> Passage:
    text, *_, walk = lists.draw_walk(rng)
    return Passage(text, " " + ", ".join(walk))


def _middle(kind: str, is_prefix_only: bool, rng: Random) -> Passage:
    before, middle, after = passages.KINDS[kind](rng)
    return Passage(before, middle, "" if is_prefix_only else after, before + passages.slot(middle, "oracle") + after)


def _fact(is_reversed: bool, rng: Random) -> Passage:
    text, name = reversal.passage(is_reversed, rng)
    return Passage(text, f" {name}.")


@cache
def kinds() -> dict[str, Kind]:
    """Name -> kind: a task of lists by its operation and the most names, `copy 15`, the others by what they are."""
    found = {}
    for most, lengths, canvas in (
        *((n, range(1, n + 1), 12) for n in (1, 2, 3)),
        (6, lists.SHORT, 32),
        (15, (15,), 64),
    ):
        for operation in lists.OPERATIONS if most > 3 else ("copy",):
            found[f"{operation} {most}"] = Kind(
                partial(_of_a_list, operation, lengths),
                partial(lists.list_documents, operation, "long" if most == 15 else "short"),
                64 if operation == "latin_square" else canvas,
            )
    del found["latin_square 15"]
    found["walk"] = Kind(_walk, lists.walk_documents, 32, share=2.0)
    for kind, canvas in (("sentence", 32), ("line", 24)):
        tests = partial(passages.documents, kind)
        found[kind] = Kind(partial(_middle, kind, False), tests, 0, share=3.0)
        found[f"{kind} prefix"] = Kind(partial(_middle, kind, True), tests, canvas, share=0.5)
    for is_reversed in (False, True):
        tests = partial(reversal.documents, is_reversed)
        found[f"reversal {is_reversed}"] = Kind(partial(_fact, is_reversed), tests, 8, reversal.N_SHOTS)
    return found


def parts() -> dict[str, tuple[Stage, ...]]:
    """From the copy of one name to all kinds as the tasks ask them; then lists of up to 6 names again, alone."""
    every = tuple(name for name in kinds() if name not in {"copy 1", "copy 2", "copy 3"})
    first = tuple(name for name in every if not name.endswith("15") and name not in {"latin_square 6", "walk"})
    copies = tuple(Stage((f"copy {n}",), n_steps, 96) for n, n_steps in ((1, 130), (2, 70), (3, 90)))
    short = tuple(name for name in first if name.endswith("6"))
    return {
        "lists": (*copies, Stage(first, 300, 96), Stage(every, 700, 48, is_asked=True)),
        "short lists": (Stage(short, 400, 64, is_asked=True),),
    }


def asked(prompt: str) -> str:
    """The last passage of a prompt."""
    return re.split(r"\n\n+(?!assert)", prompt)[-1]


@cache
def reserved(kind: str) -> frozenset[str]:
    """The passages that a task asks."""
    return frozenset(asked(document["prompt"]) for document in kinds()[kind].tests()["test"])


def document(kind: str, rng: Random, tokenizer: PreTrainedTokenizerFast, *, is_asked: bool = True) -> Document:
    """A passage, alone or, of some that are asked, behind as many solved ones as in the task; EOS fills its canvas."""
    this = kinds()[kind]
    *shown, one = drawn = [this.draw(rng) for _ in range(1 + is_asked * rng.choice((0, this.n_shots)))]
    if not reserved(kind).isdisjoint(passage.test or passage.before for passage in drawn):
        return document(kind, rng, tokenizer, is_asked=is_asked)
    solved = [passage.before + passage.answer + passage.after for passage in shown]
    before, middle = (tokenizer.tokenize(text) for text in ("\n\n".join([*solved, one.before]), one.answer))
    canvas = this.canvas or rng.choice((0, *SLOTS))
    middle += [tokenizer.eos_token] * (canvas - len(middle))
    answers = list(range(len(before), len(before) + len(middle)))
    return Document([*before, *middle, *(tokenizer.tokenize(one.after) if one.after else [])], answers)


def batches(stage: Stage, rng: Random, tokenizer: PreTrainedTokenizerFast) -> list[list[Document]]:
    """A step's documents in batches, those of about the same length together."""
    drawn = rng.choices(stage.kinds, [kinds()[name].share for name in stage.kinds], k=stage.n_documents)
    found = [document(kind, rng, tokenizer, is_asked=stage.is_asked) for kind in drawn]
    found.sort(key=lambda one: len(one.pieces))
    size = stage.n_documents // N_BATCHES
    return [found[start : start + size] for start in range(0, len(found), size)]
