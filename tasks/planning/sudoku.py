"""Sudoku on a 4x4 grid by the number of empty cells, as Dream's planning evaluation asks it (arXiv:2508.15487).

Our own seeded grids, each with one solution.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from random import Random
from typing import Any

import datasets

from mdlm_lm_eval.tasks.questions import draw, shuffled

N_QUESTIONS, N_SHOTS = 100, 8
SIDE, BOX = 4, 2
HEAD = (
    "Fill the positions where the values are 0 in a 4x4 grid with digits 1-4 so that each column, each row, and each "
    "of the four 2x2 subgrids that compose the grid contains all of the digits from 1 to 4."
)
Grid = tuple[int, ...]  # row by row, 0 where a cell is empty


@cache
def peers(cell: int) -> frozenset[int]:
    """The cells of the same row, column or box."""
    row, column = divmod(cell, SIDE)
    return frozenset(
        SIDE * r + c
        for r, c in product(range(SIDE), repeat=2)
        if (r == row or c == column or (r // BOX, c // BOX) == (row // BOX, column // BOX)) and (r, c) != (row, column)
    )


def solutions(grid: Grid) -> Iterator[Grid]:
    """Every way to fill the empty cells."""
    options = {
        cell: {1, 2, 3, 4} - {grid[other] for other in peers(cell)} for cell, digit in enumerate(grid) if not digit
    }
    if not options:
        yield grid
        return
    cell = min(options, key=lambda one: len(options[one]))
    for digit in sorted(options[cell]):
        yield from solutions((*grid[:cell], digit, *grid[cell + 1 :]))


@cache
def full_grids() -> tuple[Grid, ...]:
    """All 288."""
    return tuple(solutions((0,) * SIDE**2))


def draw_grid(n_empty: int, rng: Random) -> tuple[Grid, Grid]:
    """A grid with `n_empty` empty cells and its only solution; with more than twelve there is none."""
    while True:
        solution = full_grids()[draw(rng, len(full_grids()))]
        empty = shuffled(range(SIDE**2), rng)[:n_empty]
        grid = tuple(0 if cell in empty else digit for cell, digit in enumerate(solution))
        found = solutions(grid)
        if next(found) and next(found, None) is None:
            return grid, solution


def shown(grid: Grid) -> str:
    """Four lines of four digits."""
    digits = "".join(map(str, grid))
    return "\n".join(digits[start : start + SIDE] for start in range(0, SIDE**2, SIDE))


def documents(n_empty: int, **_: object) -> dict[str, datasets.Dataset]:
    """100 different grids behind the same eight examples."""
    rng = Random(f"mdlm sudoku {n_empty}")
    found: dict[Grid, Grid] = {}
    while len(found) < N_SHOTS + N_QUESTIONS:
        grid, solution = draw_grid(n_empty, rng)
        found[grid] = solution
    texts = [(shown(grid), shown(solution)) for grid, solution in found.items()]
    shots = [f"Input:\n{grid}\nOutput:\n{solution}" for grid, solution in texts[:N_SHOTS]]
    documents = [
        {"prompt": "\n\n".join([HEAD, *shots, f"Input:\n{grid}\nOutput:\n"]), "grid": grid, "solution": solution}
        for grid, solution in texts[N_SHOTS:]
    ]
    return {"test": datasets.Dataset.from_list(documents)}


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 for the solution, which is the only one.

    Spaces, carriage returns and empty lines before the grid do not count, nor what follows it.
    """
    answer = results[0].replace(" ", "").replace("\r", "").lstrip("\n")
    return {"exact_match": float(answer[: len(doc["grid"])] == doc["solution"])}
