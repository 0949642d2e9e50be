"""Lists to copy, order and change: how many tokens can be filled at once before the answer breaks.

The idea is ParallelBench's (Kang et al., 2025, arXiv:2510.04767); instructions, names and questions are our own. What
makes a task hard in parallel is how many right answers it has: a copy has one, a shuffle has n! - 1, and names that are
filled in one step are drawn without knowledge of each other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import pairwise, permutations
from math import prod
from operator import add
from random import Random
from typing import Any

import datasets

from mdlm_lm_eval.tasks.questions import draw, load_words, shuffled

N_QUESTIONS = 100
SHORT, LONG = (3, 4, 5, 6), (15,)
STEP_SIZES = (2, 4)  # names per step for which the bound from left to right is reported beside the score
N_SYMBOLS = 4  # of a Latin square
N_STATIONS, N_TRACKS, WALK_LENGTHS = 6, 9, (3, 4, 5, 6)

Answer = tuple[str, ...]


@dataclass(frozen=True)
class Puzzle:
    """A list of different names, an index into it (from 0), and a name that is not in it."""

    names: Answer
    index: int
    new: str


@dataclass(frozen=True)
class Operation:
    """What is to be done with a list: the instruction, and every right answer."""

    instruction: str
    answers: Callable[[Puzzle], Iterator[Answer]]


def _with(names: Answer, at: int, *put: str, dropped: int = 0) -> Answer:
    return (*names[:at], *put, *names[at + dropped :])


def _everywhere(puzzle: Puzzle, *put: str, dropped: int = 0, places: int = 0) -> Iterator[Answer]:
    return (_with(puzzle.names, at, *put, dropped=dropped) for at in range(len(puzzle.names) + places))


@cache
def latin_squares(n: int) -> list[tuple[int, ...]]:
    """All Latin squares of 0 to n - 1, row by row."""
    squares: list[tuple[tuple[int, ...], ...]] = [()]
    for _ in range(n):
        squares = [
            (*square, row)
            for square in squares
            for row in permutations(range(n))
            if all(a != b for above in square for a, b in zip(above, row, strict=True))
        ]
    return [tuple(cell for row in square for cell in row) for square in squares]


def _latin_squares(puzzle: Puzzle) -> Iterator[Answer]:
    return (tuple(puzzle.names[cell] for cell in square) for square in latin_squares(len(puzzle.names)))


#: Name -> operation. A new one needs this line, and `python -m mdlm_lm_eval.tasks.generate`.
OPERATIONS = {
    "copy": Operation("Copy the list.", lambda p: iter([p.names])),
    "reverse": Operation("Reverse the list.", lambda p: iter([p.names[::-1]])),
    "sort": Operation("Sort the list alphabetically.", lambda p: iter([tuple(sorted(p.names))])),
    "shuffle": Operation(
        "Put the list into any other order.", lambda p: (order for order in permutations(p.names) if order != p.names)
    ),
    "insert_index": Operation(
        "Insert {new} as number {number} of the list.", lambda p: iter([_with(p.names, p.index, p.new)])
    ),
    "insert_anywhere": Operation("Insert {new} anywhere into the list.", lambda p: _everywhere(p, p.new, places=1)),
    "remove_index": Operation(
        "Remove number {number} of the list.", lambda p: iter([_with(p.names, p.index, dropped=1)])
    ),
    "remove_any": Operation("Remove any one name from the list.", lambda p: _everywhere(p, dropped=1)),
    "replace_index": Operation(
        "Replace number {number} of the list by {new}.", lambda p: iter([_with(p.names, p.index, p.new, dropped=1)])
    ),
    "replace_any": Operation("Replace any one name of the list by {new}.", lambda p: _everywhere(p, p.new, dropped=1)),
    "latin_square": Operation(
        "Write a Latin square of these names, row by row: each name once in every row and every column.", _latin_squares
    ),
}


def is_right(operation: str, puzzle: Puzzle, answer: Answer) -> bool:
    """Whether `answer` is one of the right answers; a shuffle of 15 names has too many to list."""
    if operation == "shuffle":
        return answer != puzzle.names and sorted(answer) == sorted(puzzle.names)
    return answer in _answers(operation, puzzle)


@lru_cache(N_QUESTIONS)
def _answers(operation: str, puzzle: Puzzle) -> frozenset[Answer]:
    return frozenset(OPERATIONS[operation].answers(puzzle))


@cache
def bound(operation: str, n: int, index: int, k: int) -> float:
    """Probability that an ideal denoiser is right on a list of `n` names which fills `k` of them a step, left to right.

    It knows the exact distribution of every name given those that are filled, when all right answers are equally
    likely, and draws the names of a step independently. What the names are makes no difference.
    """
    puzzle = Puzzle(tuple(map(chr, range(n, 0, -1))), index, "new")
    if operation == "shuffle" and len(puzzle.names) > max(SHORT):
        # Draws of a step are right if they differ; that the list itself is no answer changes this by less than 1e-12.
        left = len(puzzle.names)
        return prod((left - n) / (left - n // k * k) for n in range(left))
    return factorised(sorted(_answers(operation, puzzle)), k)


def factorised(answers: Sequence[Answer], k: int) -> float:
    """Probability of drawing one of `answers` from the exact conditional marginals of `k` positions at a time."""
    begun = Counter(answer[: n // k * k] for answer in answers for n in range(len(answer)))
    given = Counter((answer[: n // k * k], n, answer[n]) for answer in answers for n in range(len(answer)))
    # `begun` counts an answer once for each position of a step, so that divide by how many the step has.
    drawn = (
        prod(
            given[answer[: n // k * k], n, answer[n]] / (begun[answer[: n // k * k]] / min(k, len(answer) - n // k * k))
            for n in range(len(answer))
        )
        for answer in answers
    )
    return reduce(add, drawn)  # since Python 3.12, `sum` rounds otherwise: the documents would differ


def draw_puzzle(operation: str, lengths: Sequence[int], rng: Random) -> Puzzle:
    """Names in random order, and a place among them."""
    n = N_SYMBOLS if operation == "latin_square" else lengths[draw(rng, len(lengths))]
    new, *names = shuffled(load_words()["name"], rng)[: n + 1]
    if operation == "sort" and names == sorted(names):
        names.reverse()  # a copy must not be right
    return Puzzle(tuple(names), draw(rng, n), new)


def question(operation: str, puzzle: Puzzle) -> str:
    """The instruction and the list, up to where the answer goes."""
    instruction = OPERATIONS[operation].instruction.format(new=puzzle.new, number=puzzle.index + 1)
    return f"{instruction}\nList: {', '.join(puzzle.names)}\nAnswer:"


def list_documents(operation: str, length: str, **_: object) -> dict[str, datasets.Dataset]:
    """100 questions, each with an example of its own, none asked twice."""
    rng = Random(f"mdlm parallel {operation} {length}")
    documents: list[dict[str, Any]] = []
    while len(documents) < N_QUESTIONS:
        example, asked = (draw_puzzle(operation, LONG if length == "long" else SHORT, rng) for _ in range(2))
        shown = an_answer(operation, example, rng)
        bounds = {f"bound_{k}": bound(operation, len(asked.names), asked.index, k) for k in STEP_SIZES}
        prompt = f"{question(operation, example)} {', '.join(shown)}\n\n{question(operation, asked)}"
        puzzle = {"names": list(asked.names), "index": asked.index, "new": asked.new}
        documents.append({"prompt": prompt, "operation": operation, **puzzle, **bounds})
    return {"test": datasets.Dataset.from_list(documents)}


def an_answer(operation: str, puzzle: Puzzle, rng: Random) -> Answer:
    if operation == "shuffle":
        while (order := tuple(shuffled(puzzle.names, rng))) == puzzle.names:
            pass
        return order
    answers = sorted(_answers(operation, puzzle))
    return answers[draw(rng, len(answers))]


def names_of(text: str) -> Answer:
    """An answer's names: one line, a comma and a space between them, nothing else."""
    return tuple(text.strip().split(", "))


def grade_list(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 for a right answer, and beside it what an ideal denoiser reaches with several names per step, left to right."""
    puzzle = Puzzle(tuple(doc["names"]), doc["index"], doc["new"])
    bounds = {f"bound_{k}": doc[f"bound_{k}"] for k in STEP_SIZES}
    return {"exact_match": float(is_right(doc["operation"], puzzle, names_of(results[0]))), **bounds}


def walks(edges: Sequence[tuple[str, str]], start: str, length: int) -> list[Answer]:
    """Every walk of `length` steps from `start`, without the start itself."""
    found: list[Answer] = [()]
    for _ in range(length):
        found = [
            (*walk, b if (walk[-1] if walk else start) == a else a)
            for walk in found
            for a, b in edges
            if (walk[-1] if walk else start) in (a, b)
        ]
    return found


def walk_documents(**_: object) -> dict[str, datasets.Dataset]:
    """100 walks on graphs of six stations and nine tracks, in which every station can be left."""
    rng = Random("mdlm parallel walk")
    documents: list[dict[str, Any]] = []
    while len(documents) < N_QUESTIONS:
        shown, *_parts, example = draw_walk(rng)
        asked, edges, start, length, _answer = draw_walk(rng)
        answers = walks(edges, start, length)
        documents.append(
            {
                "prompt": f"{shown} {', '.join(example)}\n\n{asked}",
                "edges": [list(edge) for edge in edges],
                "start": start,
                "length": length,
                **{f"bound_{k}": factorised(answers, k) for k in STEP_SIZES},
            }
        )
    return {"test": datasets.Dataset.from_list(documents)}


def draw_walk(rng: Random) -> tuple[str, list[tuple[str, str]], str, int, Answer]:
    stations = shuffled(load_words()["name"], rng)[:N_STATIONS]
    ring = list(pairwise([*stations, stations[0]]))
    others = [
        (a, b) for n, a in enumerate(stations) for b in stations[n + 2 :] if (a, b) != (stations[0], stations[-1])
    ]
    edges = shuffled([*ring, *shuffled(others, rng)[: N_TRACKS - len(ring)]], rng)
    length, start = WALK_LENGTHS[draw(rng, len(WALK_LENGTHS))], stations[draw(rng, N_STATIONS)]
    tracks = ", ".join(f"{a} - {b}" for a, b in edges)
    text = f"Take {length} steps from {start}, each along a track, and name the stations.\nTracks: {tracks}\nAnswer:"
    answers = walks(edges, start, length)
    return text, edges, start, length, answers[draw(rng, len(answers))]


def grade_walk(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 for a walk of the asked length whose every step is a track."""
    names = names_of(results[0])
    tracks = {frozenset(edge) for edge in doc["edges"]}
    is_walk = all(frozenset(step) in tracks for step in pairwise([doc["start"], *names]))
    bounds = {f"bound_{k}": doc[f"bound_{k}"] for k in STEP_SIZES}
    return {"exact_match": float(is_walk and len(names) == doc["length"]), **bounds}
