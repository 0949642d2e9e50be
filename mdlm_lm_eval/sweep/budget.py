"""Divides hours among the cells of the paper's experiments, by time and by the claims' declared deviations alone.

Nothing here sees an answer, so that the number of questions is no choice by outcome.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.verdict import POWER, claims, power

EFFECT = 4  # times a claim's delta: the effect that a budget makes sure to find
LEAST = 8  # questions of each task in a cell that no claim needs
_FEWER = 4  # how many times fewer questions such a cell has than the claim with the most
_MOST = 10_000  # where searches end
_STEPS = 1000  # of the scale between few questions and many


@dataclass(frozen=True)
class Work:
    """What a cell costs: seconds of its start, and of one question of each of its tasks.

    most: the most questions of a task. share: the largest share of all seconds.
    """

    start: float
    seconds: float
    most: int = _MOST
    share: float = 1.0


def powers(name: str, questions: int, n_claims: int) -> tuple[float, float]:
    """The chance that a claim is reproduced at four times delta, and that it is not reproduced without an effect."""
    claim = claims()[name]
    return power(claim, EFFECT * claim.delta, questions, n_claims), power(claim, 0.0, questions, n_claims)


def budget(
    work: Mapping[str, Work], needs: Mapping[str, Sequence[str]], hours: float, processes: int = 1
) -> dict[str, int]:
    """Questions of each task: cell -> number.

    needs: claim -> its cells. processes: how many work on the cells for these hours. All claims stand at the same place
    of a scale from the fewest questions that reproduce an effect of four times delta (with 80% power) to those that
    also tell its absence, and beyond. The time decides the place. Raises OptionError if there is too little time for
    the scale's lower end.
    """
    ends = {name: _ends(name, len(needs)) for name in needs}
    seconds = 3600 * hours * processes

    def at(step: int) -> dict[str, int]:
        of_claim = {name: math.ceil(few * (many / few) ** (3 * step / _STEPS)) for name, (few, many) in ends.items()}
        rest = max([LEAST, *(-(-n // _FEWER) for n in of_claim.values())])
        wanted = {cell: [of_claim[name] for name, cells in needs.items() if cell in cells] for cell in work}
        return {cell: min(max(own or [rest]), most[cell]) for cell, own in wanted.items()}

    most = {cell: one.most for cell, one in work.items()}
    fewest = at(0)
    least = max([seconds_of(work, fewest), *(n * work[cell].seconds / work[cell].share for cell, n in fewest.items())])
    if seconds < least:
        enough = math.ceil(least / processes / 36) / 100
        raise OptionError(
            f"--hours {hours:g} is too little: {enough:g} reproduces every claim at an effect of {EFFECT} times its "
            f"delta with {POWER:.0%} power"
        )
    most = {cell: min(one.most, int(one.share * seconds / one.seconds)) for cell, one in work.items()}
    return at(bisect_right(range(_STEPS + 1), seconds, key=lambda step: seconds_of(work, at(step))) - 1)


def seconds_of(work: Mapping[str, Work], questions: Mapping[str, int]) -> float:
    """The time that these questions of each task take."""
    return sum(work[cell].start + n * work[cell].seconds for cell, n in questions.items())


def _ends(name: str, n_claims: int) -> tuple[int, int]:
    """The fewest questions that reproduce a claim at four times delta, and that tell an effect of zero from delta."""
    few, many = (
        bisect_left(range(1, _MOST), POWER, key=lambda n: powers(name, n, n_claims)[which]) + 1 for which in (0, 1)
    )
    return few, max(few, many)
