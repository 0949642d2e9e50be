"""Prompt layouts of the few-shot suite: the paper's, character for character (section 3, appendix C.4), and others."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .questions import Question, shuffled

SLOT_MARKER = "<|mask|>"
HIDDEN = "?"  # stands for the label of an answer that is not shown
QUESTION_PLACES = ("left", "middle", "right")


@dataclass(frozen=True)
class Example:
    """A question of a prompt that is shown with its answer, or, `is_hidden`, without."""

    question: Question
    is_relevant: bool
    is_hidden: bool = False


@dataclass(frozen=True)
class Template:
    """One wording of a few-shot prompt.

    option, separator: how an option is written, and the text between two of them. before, between: the texts before the
    options, and between them and the answer, a label in square brackets. labels: of the options, which come in their
    order or the last first (`last_first`). delimiter: between two questions. instruction: before all of them.
    """

    before: str = "Options: "
    option: str = "({label}) {word}"
    separator: str = ", "
    between: str = "\nAnswer:"
    labels: str = "ABC"
    last_first: bool = False
    delimiter: str = "\n\n"
    instruction: str = ""

    def text(self, question: Question, slot: str) -> str:
        """The question with `slot` (an answer's label or a slot marker) between its square brackets."""
        options = [
            self.option.format(label=label, word=word)
            for label, word in zip(self.labels, question.options, strict=True)
        ]
        listed = self.separator.join(options[::-1] if self.last_first else options)
        return f"{self.before}{listed}{self.between}[{slot}]."

    def label(self, question: Question) -> str:
        """The right option's."""
        return self.labels[question.answer]

    def solved(self, question: Question) -> str:
        """The question with its answer."""
        return self.text(question, self.label(question))

    def shown(self, example: Example) -> str:
        """The example as a prompt has it."""
        return self.text(example.question, HIDDEN) if example.is_hidden else self.solved(example.question)

    def open_ended(self, question: Question) -> str:
        """The question up to the place where its answer goes."""
        return self.text(question, SLOT_MARKER).partition(SLOT_MARKER)[0]

    def plain_text(self, texts: Sequence[str]) -> str:
        """The prompt of a base model."""
        return self.delimiter.join([self.instruction, *texts] if self.instruction else texts)

    def chat_messages(self, texts: Sequence[str]) -> list[dict[str, str]]:
        """The prompt of an instruct model: the options as user message, the answer as assistant message."""
        messages = [{"role": "system", "content": self.instruction}] if self.instruction else []
        for text in texts:
            options, answer = text.rsplit("\n", 1)
            messages += [{"role": "user", "content": options}, {"role": "assistant", "content": answer}]
        return messages


_INSTRUCTION = "Each question has three options. One of them follows a rule, which the solved questions show."
#: `--metadata fewshot_template=N` takes the Nth; 0 is the paper's.
TEMPLATES = (
    Template(),
    Template(before="Choices: ", between="\nChoice:"),
    Template(before="Options:\n", separator="\n"),
    Template(labels="123"),
    Template(labels="abc", option="{label}) {word}"),
    Template(instruction=_INSTRUCTION),
    Template(delimiter="\n"),
    Template(before="", option="{label}: {word}", separator="; ", between="\nRight:"),
    Template(last_first=True),
    Template("Which word fits?\n", "{label}. {word}", separator="\n", labels="XYZ", instruction=_INSTRUCTION),
)


def mixed(relevant: Sequence[Example], distractors: Sequence[Example], rng: Random) -> list[Example]:
    """Relevant and distractor examples shuffled together."""
    return shuffled([*relevant, *distractors], rng)


def block(relevant: Sequence[Example], distractors: Sequence[Example], position: int) -> list[Example]:
    """The relevant examples together, after `position` of the distractors; the order inside both stays."""
    return [*distractors[:position], *relevant, *distractors[position:]]


def split_at_question(examples: Sequence[Example], place: str) -> tuple[Sequence[Example], Sequence[Example]]:
    """The examples before and after a test question that stands `left`, in the `middle` or `right` of them."""
    n_before = {"left": 0, "middle": len(examples) // 2, "right": len(examples)}[place]
    return examples[:n_before], examples[n_before:]
