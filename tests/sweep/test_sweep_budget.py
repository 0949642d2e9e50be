"""The number of questions that hours buy: by time and by the claims' declared deviations alone."""

import re

import pytest

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.verdict import claims, power
from mdlm_lm_eval.sweep.budget import Work, budget, powers, seconds_of

# Two steps, forty of them, gradients of 20 questions at most, and a cell that is only drawn.
WORK = {
    "near": Work(1, 0.5),
    "far": Work(1, 0.5),
    "masks": Work(1, 0.7),
    "slow": Work(1, 12.0, most=900),
    "gradients": Work(1, 60.0, most=20, share=0.2),
    "drawn": Work(1, 0.6),
}
NEEDS = {
    "locality_right": ["near", "far"],
    "masks": ["near", "masks"],
    "unmasking_random": ["near", "slow"],
    "gradients_near": ["gradients"],
}


def test_hours_are_used_and_not_exceeded_and_more_of_them_never_ask_less() -> None:
    before = dict.fromkeys(WORK, 0)
    for hours in (0.25, 0.5, 1, 2, 4):
        found = budget(WORK, NEEDS, hours)
        assert all(found[cell] >= before[cell] for cell in WORK)
        assert 0.95 * 3600 * hours < seconds_of(WORK, found) <= 3600 * hours, hours
        assert found["gradients"] * WORK["gradients"].seconds <= 0.2 * 3600 * hours
        before = found
    assert found["masks"] > found["slow"] > 20 >= found["gradients"]
    assert found["near"] == max(found["far"], found["masks"], found["slow"]), "a shared cell takes the largest number"
    assert found["drawn"] < found["masks"] / 3
    assert budget(WORK, NEEDS, 2, processes=2) == budget(WORK, NEEDS, 4)


def test_the_least_hours_reproduce_every_claim_and_less_is_refused_with_their_number() -> None:
    with pytest.raises(OptionError, match=r"--hours 0\.001 is too little: .*4 times its delta with 80% power") as error:
        budget(WORK, NEEDS, 0.001)
    found = re.search(r"little: ([\d.]+)", str(error.value))
    assert found
    least = float(found[1])
    questions = budget(WORK, NEEDS, least)
    for name, cells in NEEDS.items():
        claim = claims()[name]
        n = min(questions[cell] for cell in cells)
        assert power(claim, 4 * claim.delta, n, len(NEEDS)) >= 0.8
    assert min(powers(name, questions[cells[1 % len(cells)]], len(NEEDS))[1] for name, cells in NEEDS.items()) < 0.5
    with pytest.raises(OptionError):
        budget(WORK, NEEDS, least - 0.02)


def test_enough_hours_also_tell_that_there_is_no_effect() -> None:
    questions = budget(WORK, NEEDS, 20)
    for name, cells in NEEDS.items():
        assert min(powers(name, min(questions[cell] for cell in cells), len(NEEDS))) >= 0.8, name
