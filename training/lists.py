"""Training documents of the lists model: short lists in the wording of `mdlm_parallel`, without its questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from transformers import PreTrainedTokenizerFast

from mdlm_lm_eval.tasks.parallel import lists
from training.corpus import Document

N_BATCHES = 4  # batches in a step
CANVAS = 24  # masks for an answer, as in the tasks
#: Operations with one right answer, and with several.
ONE = ("copy", "reverse", "sort", "insert_index", "remove_index", "replace_index")
SEVERAL = ("shuffle", "insert_anywhere", "remove_any", "replace_any")


@dataclass(frozen=True)
class Stage:
    """Training steps on lists of up to `most` names. Each stage has new optimisers, with learning rates that fall to a
    tenth.

    With `is_asked`, half of the questions follow a solved one, as in the tasks; otherwise they stand alone.
    """

    name: str
    operations: tuple[str, ...]
    most: int  # names
    n_steps: int
    n_documents: int = 64  # documents in a step
    rate: float = 0.02  # first learning rate of matrices; other weights have a tenth
    is_asked: bool = False


STAGES = (
    Stage("one name", ("copy",), 1, 130, 96),
    Stage("two names", ("copy",), 2, 70, 96),
    Stage("three names", ("copy",), 3, 90, 96),
    Stage("operations on two names", ONE, 2, 200),
    Stage("operations on three names", ONE, 3, 300),
    Stage("operations on four names", ONE, 4, 400),
    Stage("operations on six names", ONE + SEVERAL, 6, 1600),
    Stage("operations on six names, slower", ONE + SEVERAL, 6, 1600, rate=0.01),
    Stage("as asked", ONE + SEVERAL, 6, 900, 48, rate=0.01, is_asked=True),
    Stage("as asked, slower", ONE + SEVERAL, 6, 1500, 48, rate=0.005, is_asked=True),
)


@cache
def reserved(operation: str) -> frozenset[str]:
    """The test questions of a task, without examples."""
    tests = lists.list_documents(operation, "short")["test"]
    return frozenset(document["prompt"].split("\n\n")[-1] for document in tests)


def document(
    operation: str, lengths: Sequence[int], rng: Random, tokenizer: PreTrainedTokenizerFast, *, n_shots: int = 0
) -> Document:
    """A question after `n_shots` solved ones, and its answer. EOS fills the canvas."""
    puzzles = [lists.draw_puzzle(operation, lengths, rng) for _ in range(1 + n_shots)]
    questions = [lists.question(operation, puzzle) for puzzle in puzzles]
    if not reserved(operation).isdisjoint(questions):
        return document(operation, lengths, rng, tokenizer, n_shots=n_shots)
    *answers, answer = [" " + ", ".join(lists.an_answer(operation, puzzle, rng)) for puzzle in puzzles]
    solved = [question + answer for question, answer in zip(questions, answers, strict=False)]
    before, after = (tokenizer.tokenize(text) for text in ("\n\n".join([*solved, questions[-1]]), answer))
    after += [tokenizer.eos_token] * (CANVAS - len(after))
    return Document(before + after, list(range(len(before), len(before) + len(after))))


def batches(stage: Stage, rng: Random, tokenizer: PreTrainedTokenizerFast) -> list[list[Document]]:
    """The documents of a step in batches, sorted by length."""
    lengths = range(min(2, stage.most), stage.most + 1)
    found = [
        document(operation, lengths, rng, tokenizer, n_shots=stage.is_asked and rng.randrange(2))
        for operation in rng.choices(stage.operations, k=stage.n_documents)
    ]
    found.sort(key=lambda one: len(one.pieces))
    size = stage.n_documents // N_BATCHES
    return [found[start : start + size] for start in range(0, len(found), size)]
