"""Countdown: combine three to five numbers by + - * / to reach a target, as Dream's planning evaluation asks it.

Answers are chains of steps such as `86+28=114,31-13=18,114-18=96` (Ye et al., 2025, arXiv:2508.15487; Gandhi et al.,
2024, arXiv:2404.03683). Any right chain counts. Our own seeded questions.
"""

import re
from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any

import datasets

from mdlm_lm_eval.tasks.questions import draw

N_QUESTIONS, N_SHOTS = 200, 8
LARGEST, LARGEST_STEP = 99, 1000  # of the given numbers, and of what a step gives; targets are 10 to 100
_STEP = re.compile(r"(\d+(?:[+\-*/]\d+)+)=(\d+)")
_TERM = re.compile(r"([+-]?)(\d+)((?:[*/]\d+)*)")
_WORDS = {3: ("three", "fourth"), 4: ("four", "fifth"), 5: ("five", "sixth")}


def value_of(expression: str) -> Fraction | None:
    """Of numbers joined by + - * /, with * and / before + and -; None where it divides by 0."""
    total = Fraction(0)
    for sign, first, factors in _TERM.findall(expression):
        product = Fraction(int(first))
        for operation, number in re.findall(r"([*/])(\d+)", factors):
            if operation == "/" and int(number) == 0:
                return None
            product = product * int(number) if operation == "*" else product / int(number)
        total += -product if sign == "-" else product
    return total


def is_solution(numbers: list[int], target: int, answer: str) -> bool:
    """Whether every step is right, each number and result is used once, and the last step gives the target.

    A step may join more than two numbers. Unlike in Dream's evaluation it may not use the result of a later one: chains
    whose results come from each other reach any target.
    """
    left = Counter(map(str, numbers))  # as written: 086 is not among them
    for text in answer.split(","):
        step = _STEP.fullmatch(text)
        if step is None or value_of(step[1]) != int(step[2]):
            return False
        left.subtract(re.findall(r"\d+", step[1]))
        if min(left.values()) < 0:
            return False
        left[step[2]] += 1
    return +left == Counter([str(target)]) and answer.rpartition("=")[2] == str(target)


def draw_question(n: int, rng: Random) -> tuple[list[int], int, str]:
    """`n` numbers, a target that they reach, and the chain that it was made by."""
    while True:
        numbers = [1 + draw(rng, LARGEST) for _ in range(n)]
        left, steps = list(numbers), []
        while len(left) > 1:
            a, b = (left.pop(draw(rng, len(left))) for _ in range(2))
            expression = f"{a}{'+-*/'[draw(rng, 4)]}{b}"
            result = value_of(expression)
            if result is None or not 0 <= result <= LARGEST_STEP or result.denominator > 1:
                break
            steps.append(f"{expression}={result}")
            left.append(int(result))
        if len(steps) == n - 1 and 10 <= left[0] <= 100:
            return numbers, left[0], ",".join(steps)


def documents(n_numbers: int, **_: object) -> dict[str, datasets.Dataset]:
    """200 different questions behind the same eight examples."""
    rng = Random(f"mdlm countdown {n_numbers}")
    found: dict[tuple[tuple[int, ...], int], tuple[list[int], int, str]] = {}
    while len(found) < N_SHOTS + N_QUESTIONS:
        numbers, target, chain = draw_question(n_numbers, rng)
        found[tuple(sorted(numbers)), target] = numbers, target, chain
    questions = list(found.values())
    these, last = _WORDS[n_numbers]
    use = f"use +-*/ to operate over the first {these} numbers to achieve the {last} number."
    head = f"Given {n_numbers + 1} numbers, {use}"
    shots = [f"{_asked(numbers, target)} {chain}" for numbers, target, chain in questions[:N_SHOTS]]
    documents = [
        {
            "prompt": "\n\n".join([head, *shots, _asked(numbers, target)]),
            "numbers": numbers,
            "target": target,
            "solution": chain,
        }
        for numbers, target, chain in questions[N_SHOTS:]
    ]
    return {"test": datasets.Dataset.from_list(documents)}


def _asked(numbers: list[int], target: int) -> str:
    return f"Input: {','.join(map(str, [*numbers, target]))}\nOutput:"


def grade(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 for any right chain."""
    return {"exact_match": float(is_solution(doc["numbers"], doc["target"], results[0].strip()))}
