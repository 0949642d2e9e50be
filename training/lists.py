"""Documents of the lists model: short lists, asked as `mdlm_parallel` asks them. None that a task asks is in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from transformers import PreTrainedTokenizerFast

from mdlm_lm_eval.tasks.parallel import lists
from training.corpus import Document

N_BATCHES = 4  # of a step
CANVAS = 24  # masks of an answer, as the tasks ask for
#: Operations that have one right answer, and those that have several.
ONE = ("copy", "reverse", "sort", "insert_index", "remove_index", "replace_index")
SEVERAL = ("shuffle", "insert_anywhere", "remove_any", "replace_any")


@dataclass(frozen=True)
class Stage:
    """Steps on lists of up to so many names, by optimisers of its own, whose learning rates fall to a tenth.

    Questions stand alone, or half of them behind a solved one, as the tasks ask them.
    """

    name: str
    operations: tuple[str, ...]
    most: int  # names
    n_steps: int
    n_documents: int = 64  # of a step
    rate: float = 0.02  # of matrices at first; a tenth for all others
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
    """The questions of a task, without its examples."""
    tests = lists.list_documents(operation, "short")["test"]
    return frozenset(document["prompt"].split("\n\n")[-1] for document in tests)


def document(
    operation: str, lengths: Sequence[int], rng: Random, tokenizer: PreTrainedTokenizerFast, *, n_shots: int = 0
) -> Document:
    """A question behind so many solved ones, and its answer; EOS fills the canvas."""
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
    """A step's documents in batches, those of about the same length together."""
    lengths = range(min(2, stage.most), stage.most + 1)
    found = [
        document(operation, lengths, rng, tokenizer, n_shots=stage.is_asked and rng.randrange(2))
        for operation in rng.choices(stage.operations, k=stage.n_documents)
    ]
    found.sort(key=lambda one: len(one.pieces))
    size = stage.n_documents // N_BATCHES
    return [found[start : start + size] for start in range(0, len(found), size)]
