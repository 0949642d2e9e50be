"""Prompt layouts of the few-shot suite, character for character (paper, section 3 and appendix C.4)."""

from collections.abc import Sequence
from random import Random

from .questions import LETTERS, Question, shuffled

SLOT_MARKER = "<|mask|>"
DELIMITER = "\n\n"
QUESTION_PLACES = ("left", "middle", "right")


def mixed(relevant: Sequence[Question], distractors: Sequence[Question], rng: Random) -> list[Question]:
    """Relevant and distractor examples shuffled together."""
    return shuffled([*relevant, *distractors], rng)


def block(relevant: Sequence[Question], distractors: Sequence[Question], position: int) -> list[Question]:
    """The relevant examples together, after `position` of the distractors; the order inside both stays."""
    return [*distractors[:position], *relevant, *distractors[position:]]


def split_at_question(examples: Sequence[Question], place: str) -> tuple[Sequence[Question], Sequence[Question]]:
    """The examples before and after a test question that stands `left`, in the `middle` or `right` of them."""
    n_before = {"left": 0, "middle": len(examples) // 2, "right": len(examples)}[place]
    return examples[:n_before], examples[n_before:]


def solved(question: Question) -> str:
    """The question with its answer."""
    return question.text(slot=LETTERS[question.answer])


def open_ended(question: Question) -> str:
    """The question up to the place where its answer goes."""
    return question.text(slot=SLOT_MARKER).partition(SLOT_MARKER)[0]


def fixed_slot(question: Question) -> str:
    """The question with a slot marker, which the model sees as one mask token, in the place of its answer."""
    return question.text(slot=SLOT_MARKER)


def plain_text(texts: Sequence[str]) -> str:
    """The prompt of a base model."""
    return DELIMITER.join(texts)


def chat_messages(texts: Sequence[str]) -> list[dict[str, str]]:
    """The prompt of an instruct model: the options as user message, the answer as assistant message."""
    messages = []
    for text in texts:
        options, answer = text.split("\n")
        messages += [{"role": "user", "content": options}, {"role": "assistant", "content": answer}]
    return messages
