"""How a row of each data set becomes a question and an answer.

Functions, because lm-eval compiles a YAML's templates anew for each example of each prompt, which at 25 shots takes
longer than the answers.
"""

from typing import Any

LETTERS = "ABC"  # of the labels 0, 1, 2

Row = dict[str, Any]


def agnews(row: Row) -> str:
    return f"Text: {row['text'].strip()}\nOptions: (A) World, (B) Sports, (C) Business"


def sst2(row: Row) -> str:
    return f"Text: {row['sentence'].strip()}\nOptions: (A) negative, (B) positive"


def rotten_tomatoes(row: Row) -> str:
    return f"Text: {row['text'].strip()}\nOptions: (A) negative, (B) positive"


def mrpc(row: Row) -> str:
    first, second = row["sentence1"].strip(), row["sentence2"].strip()
    return f"First: {first}\nSecond: {second}\nOptions: (A) different meanings, (B) same meaning"


def rte(row: Row) -> str:
    premise, hypothesis = row["sentence1"].strip(), row["sentence2"].strip()
    return f"Premise: {premise}\nHypothesis: {hypothesis}\nOptions: (A) entailment, (B) no entailment"


def qnli(row: Row) -> str:
    question, text = row["question"].strip(), row["sentence"].strip()
    return f"Question: {question}\nText: {text}\nOptions: (A) answered, (B) not answered"


def letter(row: Row) -> str:
    """The answer that is scored."""
    return LETTERS[row["label"]]


def solution(row: Row) -> str:
    """The answer as an example gives it."""
    return f"Answer:[{letter(row)}]."
