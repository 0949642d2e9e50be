"""What is promised of the frozen questions of the generated tasks, found by trying.

    python -m benchmarks.frozen_questions

- `mdlm_parallel_*`: an oracle that draws the names of a step without each other is right as often as the bound says.
- `mdlm_sudoku_*`: a grid has one solution.
- `mdlm_infill_sentence`, `mdlm_infill_line`: both sides say what stands in the middle, and nothing else fits.

The tests hold the questions' digests, so this is run where they change. It ends with an error for a broken promise.
"""

import re
from functools import cache
from itertools import pairwise, permutations, product
from random import Random

from tests.tasks.test_tasks_generated import Document, documents, grade, is_right

SEVERAL = ("shuffle", "insert_anywhere", "remove_any", "replace_any", "reverse", "latin_square")


def question_of_four(operation: str) -> tuple[Document, list[tuple[str, ...]]]:
    """The first question about four names, and its right answers."""
    doc = next(doc for doc in documents(f"mdlm_parallel_{operation}") if len(doc["names"]) == 4)
    return doc, right_answers(doc)


def right_answers(doc: Document) -> list[tuple[str, ...]]:
    """Found by trying, where there are few enough."""
    if doc["operation"] == "latin_square":
        rows = list(permutations(doc["names"]))
        squares = (first + second + third + fourth for first, second, third, fourth in product(rows, repeat=4))
        distinct = (one for one in squares if all(len({*one[n::4]}) == 4 for n in range(4)))
        return [square for square in distinct if is_right(doc, list(square))]
    n = {"insert_anywhere": 1, "remove_any": -1}.get(doc["operation"], 0) + len(doc["names"])
    return [answer for answer in product([*doc["names"], doc["new"]], repeat=n) if is_right(doc, list(answer))]


def walks_of_five() -> tuple[Document, list[tuple[str, ...]]]:
    """The first question about five steps, and its right answers."""
    doc = next(doc for doc in documents("mdlm_parallel_walk") if doc["length"] == 5)
    tracks = {(a, b) for edge in doc["edges"] for a, b in permutations(edge)}
    stations = sorted({station for edge in doc["edges"] for station in edge})
    walks = product(stations, repeat=5)
    return doc, [one for one in walks if {*pairwise((doc["start"], *one))} <= tracks]


def check_bound(name: str, doc: Document, answers: list[tuple[str, ...]], k: int) -> None:
    """An oracle samples each name of a step from its exact distribution given the steps before, without the others."""
    rng, n_right, n = Random(k), 0, 2000

    @cache
    def possible(drawn: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The right answers that begin with these names."""
        known = possible(drawn[:-k]) if len(drawn) > k and len(drawn) % k == 0 else answers
        return [answer for answer in known if answer[: len(drawn)] == drawn]

    for _ in range(n):
        drawn: tuple[str, ...] = ()
        while len(drawn) < len(answers[0]) and (left := possible(drawn)):
            step = range(len(drawn), min(len(drawn) + k, len(answers[0])))
            drawn += tuple(rng.choice(left)[position] for position in step)
        n_right += grade(name, doc, ", ".join(drawn)) == 1
    bound = doc[f"bound_{k}"]
    error = (bound * (1 - bound) / n) ** 0.5
    assert abs(n_right / n - bound) <= 4 * error


def solve(cells: str) -> list[str]:
    """By backtracking over the first empty cell, with the rules read off the finished lines."""
    if "0" not in cells:
        return [cells]
    at = cells.index("0")
    row, column = divmod(at, 4)
    corner = row // 2 * 8 + column // 2 * 2
    seen = {
        *cells[row * 4 : row * 4 + 4],
        *cells[column::4],
        *cells[corner : corner + 2],
        *cells[corner + 4 : corner + 6],
    }
    return [found for digit in "1234" if digit not in seen for found in solve(cells[:at] + digit + cells[at + 1 :])]


def given_away(text: str) -> str:
    """Read off the amounts before and after."""
    before, after = (
        {name: int(amount) for name, amount in re.findall(r"(\w+) has (\d+)", part)} for part in text.split("<|mask")
    )
    (thing,) = {*re.findall(r" has \d+ (\w+)", text)}
    (giver,) = (name for name in before if after[name] < before[name])
    (taker,) = (name for name in before if after[name] > before[name])
    return f"{giver} gives {before[giver] - after[giver]} {thing} to {taker}."


def every_line(text: str) -> list[str]:
    name = text.split("\n")[1].split()[0]
    return [f"{name} = {name} {sign} {number}" for sign in "+-*" for number in range(2, 10)]


def passes(text: str, line: str) -> bool:
    """Whether the program's own assertions hold with this line in it."""
    before, _, after = text.partition("<|mask")
    try:
        exec(before + line + after.partition("|>")[2], {})
    except AssertionError:
        return False
    return True


if __name__ == "__main__":
    for operation, k in product(SEVERAL, (2, 4)):
        check_bound(f"mdlm_parallel_{operation}", *question_of_four(operation), k)
    for k in (2, 4):
        check_bound("mdlm_parallel_walk", *walks_of_five(), k)
    for n in range(4, 13):
        for doc in documents(f"mdlm_sudoku_{n}"):
            assert solve(doc["grid"].replace("\n", "")) == [doc["solution"].replace("\n", "")]
    for doc in documents("mdlm_infill_sentence"):
        assert given_away(doc["prompt"].split("\n\n")[-1]) == doc["answer"]
    for doc in documents("mdlm_infill_line"):
        text = doc["prompt"].split("\n\n\n")[-1]
        assert [line for line in every_line(text) if passes(text, line)] == [doc["answer"]]
    print("all promises hold")
