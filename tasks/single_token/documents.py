"""Which rows of a data set become test questions and in-context examples of the single-token tasks."""

from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any

from datasets import Dataset

LETTERS = "ABC"
LABELS = (0, 1, 2)  # those with a letter; -1 stands where a data set keeps a label secret
N_TEST_QUESTIONS = 1000
N_EXAMPLES = 100
MAX_CHARACTERS = 500  # of all texts of a row together
ORDER_SEED = "mdlm single-token 1"


def test_questions(split: Dataset) -> Dataset:
    """At most 1000 rows in a fixed random order, each with the letters of its answer and of the others (`labels`)."""
    return _with_letters(islice(_usable(split), N_TEST_QUESTIONS))


def short_test_questions(split: Dataset) -> Dataset:
    """The same, of rows of at most 500 characters."""
    return _with_letters(islice(_usable(split, MAX_CHARACTERS), N_TEST_QUESTIONS))


def examples(split: Dataset) -> Dataset:
    """At most 100 rows, of which every next few have one of each label in random order.

    So labels are balanced whatever the number of shots, and fewer shots are the beginning of more.
    """
    return _balanced(_usable(split))


def short_examples(split: Dataset) -> Dataset:
    """The same, of rows of at most 500 characters."""
    return _balanced(_usable(split, MAX_CHARACTERS))


def _with_letters(rows: Iterable[dict[str, Any]]) -> Dataset:
    found = list(rows)
    letters = list(LETTERS[: 1 + max(row["label"] for row in found)])
    return Dataset.from_list([{**row, "labels": letters, "answer": LETTERS[row["label"]]} for row in found])


def _usable(split: Dataset, max_characters: int | None = None) -> Iterator[dict[str, Any]]:
    order = list(range(len(split)))
    Random(ORDER_SEED).shuffle(order)
    for index in order:
        row = split[index]
        characters = sum(len(value.strip()) for value in row.values() if isinstance(value, str))
        if row["label"] in LABELS and (max_characters is None or characters <= max_characters):
            yield row


def _balanced(rows: Iterator[dict[str, Any]]) -> Dataset:
    by_label: dict[int, list[dict[str, Any]]] = {}
    for row in islice(rows, 10 * N_EXAMPLES):  # enough that the rarest label of these data sets has its share
        by_label.setdefault(row["label"], []).append(row)
    rng = Random(ORDER_SEED)
    dealt: list[dict[str, Any]] = []
    for one_of_each in zip(*(by_label[label] for label in sorted(by_label)), strict=False):
        dealt += rng.sample(one_of_each, len(one_of_each))
    return Dataset.from_list(dealt[:N_EXAMPLES])
