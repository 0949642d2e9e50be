"""HotpotQA's questions of the kind "A or B?", with both options (paper, appendix A.7)."""

import re
import string
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from datasets import Dataset

# The paper's limit is 1000 tokens. A count by each model's own tokenizer would ask every model other questions, so it
# is 4 characters a token here, the usual estimate for English.
MAX_CHARACTERS = 4 * 1000
N_EXAMPLES = 20
AFTER_COMMA = re.compile(r"[,:;] (?P<first>[^,:;]+),? or (?P<second>[^,:;]+)$")
QUALIFIER = re.compile(r" \([^()]*\)$")


def test_questions(split: Dataset) -> Dataset:
    """All questions that have two options and fit, in the data set's order."""
    return Dataset.from_list(list(_two_option_questions(split)))


def examples(split: Dataset) -> Dataset:
    """The first 20 of them."""
    return Dataset.from_list(list(islice(_two_option_questions(split), N_EXAMPLES)))


def parse_options(question: str, titles: Iterable[str]) -> tuple[str, str] | None:
    """The two options of a question, in its order, or None.

    They are two titles of the context next to "or" ("Is Ann or Eve older?"), or else what stands on both sides of "or"
    after the last comma ("Which is longer, the Elbe or the Oder?").
    """
    asked = question.strip().rstrip("?. ")
    left, _, right = asked.partition(" or ")
    if not right or " or " in right:
        return None
    names = sorted({QUALIFIER.sub("", title) for title in titles}, key=len, reverse=True)
    first = next((name for name in names if left.removesuffix(",").endswith(f" {name}")), None)
    second = next((name for name in names if re.match(rf"{re.escape(name)}(?!\w)", right)), None)
    if first and second:
        return first, second
    match = AFTER_COMMA.search(asked)
    return (match["first"], match["second"]) if match else None


def _two_option_questions(split: Dataset) -> Iterator[dict[str, Any]]:
    for row in split:
        options = parse_options(row["question"], row["context"]["title"])
        if options is None:
            continue
        correct = [_normalised(option) == _normalised(row["answer"]) for option in options]
        context = "\n".join("".join(sentences).strip() for sentences in row["context"]["sentences"])
        if sum(correct) == 1 and sum(map(len, (context, row["question"], *options))) <= MAX_CHARACTERS:
            yield {
                "context": context,
                "question": row["question"].strip(),
                "options": list(options),
                "answer": "AB"[correct.index(True)],
            }


def _normalised(answer: str) -> str:
    """As HotpotQA's own evaluation compares answers: without case, punctuation and articles."""
    bare = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
