"""How a point becomes a question and an answer.

The paper's labels are Above and Below; the rest of its format is not given, so this is the few-shot suite's. Functions,
because lm-eval compiles a YAML's templates anew for each of 30 examples of each prompt.
"""

LETTERS = "AB"  # of the labels Above and Below

Point = dict[str, int]


def question(point: Point) -> str:
    return f"Point: ({point['x']}, {point['y']}, {point['z']})\nOptions: (A) Above, (B) Below"


def letter(point: Point) -> str:
    """The answer that is scored."""
    return LETTERS[point["label"]]


def solution(point: Point) -> str:
    """The answer as an example gives it."""
    return f"Answer:[{letter(point)}]."
