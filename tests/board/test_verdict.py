"""The verdicts on the paper's claims: planted effects, gates, Holm's method, and how often they are wrong."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from mdlm_lm_eval.paper.answers import Answers, Model
from mdlm_lm_eval.paper.evidence import SLOT, evidence_of
from mdlm_lm_eval.paper.verdict import LEVEL, N_TASKS, Evidence, claims, decide, power, questions_needed


def _evidence(effect, spread=1.0, reference=80.0, without_letter=0.0, noise=0.5, questions=100):
    effects = {f"task {n}": effect + spread * (-1) ** n for n in range(N_TASKS)}
    return Evidence(effects, noise, questions, reference, without_letter)


def _all(**changed):
    """Evidence for all claims: a clear effect, except where `changed` says otherwise."""
    found = {name: _evidence(4 * claim.delta, spread=claim.delta / 5) for name, claim in claims().items()}
    return {**found, **changed}


@pytest.mark.parametrize("name", claims())
@pytest.mark.parametrize(
    ("times", "kind"), [(4, "reproduced"), (0, "not reproduced"), (-4, "the opposite"), (1, "too few questions")]
)
def test_a_planted_effect_has_its_verdict(name, times, kind):
    claim = claims()[name]
    planted = _evidence(times * claim.delta, spread=claim.delta / 5)
    found = decide(_all(**{name: planted}))
    assert found[name].kind == kind
    assert found[name].low < times * claim.delta < found[name].high


@pytest.mark.parametrize(
    ("name", "evidence", "kind", "words"),
    [
        ("masks", _evidence(20, reference=44), "cannot tell", "does not use the examples (44.0% right"),
        (
            "masks",
            _evidence(20, without_letter=21),
            "cannot tell",
            "cannot tell: 21% of its answers to “2 masks” are no letter",
        ),
        ("locality_left", _evidence(0, reference=98), "at the ceiling", "98.0% right"),
        ("masks", _evidence(20, reference=98), "reproduced", "reproduced"),
    ],
)
def test_what_cannot_show_an_effect_is_no_verdict_on_it(name, evidence, kind, words):
    found = decide(_all(**{name: evidence}))[name]
    assert found.kind == kind
    assert words in found.words


def test_steps_have_nothing_to_recover_without_a_loss():
    found = decide(_all(masks=_evidence(0)))
    assert found["unmasking_random"].kind == found["fine_tuning"].kind == "nothing to recover"
    assert decide(_all())["unmasking_random"].kind == "reproduced"


def test_a_loss_to_masks_says_what_it_is_due_to():
    assert decide(_all())["masks"].words == "reproduced"
    by_text = decide(_all(masks_among_letters=_evidence(0)))["masks"]
    assert by_text.words == "reproduced; by ending the text"
    by_length = decide(_all(dots=_evidence(0)))["masks"]
    assert by_length.words == "reproduced; anything appended hurts, masks no more than dots"
    assert decide(_all(masks=_evidence(0), dots=_evidence(0)))["masks"].words == "not reproduced"


def test_intervals_are_those_of_holms_tests():
    """A verdict and its interval agree, and p values below their levels alone are decided."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        evidence = {
            name: Evidence({str(n): rng.normal(1.5 * claim.delta, claim.delta) for n in range(N_TASKS)}, 1, 9, 80, 0)
            for name, claim in claims().items()
        }
        found = decide(evidence)
        p = {name: stats.ttest_1samp([*evidence[name].effects.values()], claims()[name].delta).pvalue for name in found}
        in_order = sorted(p, key=lambda name: p[name])
        n_rejected = next((n for n, name in enumerate(in_order) if p[name] > LEVEL / (len(p) - n)), len(p))
        for rank, name in enumerate(in_order):
            one = found[name]
            if one.kind != "nothing to recover":
                assert (rank < n_rejected) == (one.kind != "too few questions")
            assert one.level == pytest.approx(LEVEL / (len(p) - min(rank, n_rejected)))
            assert (one.low <= one.claim.delta <= one.high) == (rank >= n_rejected)


def test_the_number_of_questions_needed_decides():
    """Answers of so many questions decide a null effect in about 80% of runs, or more."""
    claim, rng, decided = claims()["dots"], np.random.default_rng(0), 0
    question_sd, task_sd = 60.0, 1.0

    def drawn(questions):
        of_tasks = rng.normal(0, task_sd, N_TASKS) + rng.normal(0, question_sd / math.sqrt(questions), N_TASKS)
        effects = {str(n): float(one) for n, one in enumerate(of_tasks)}
        return Evidence(effects, question_sd**2 / questions, questions, 80, 0)

    needed = [questions_needed(claim, drawn(50), len(claims())) for _ in range(200)]
    typical = int(np.median([one for one in needed if one is not None]))
    others = {name: _evidence(claims()[name].delta) for name in claims()}
    for _ in range(200):
        decided += decide({**others, "dots": drawn(typical)})["dots"].kind == "not reproduced"
    assert decided >= 140
    wild = Evidence({str(n): 40.0 * (n % 2) for n in range(N_TASKS)}, 1.0, 50, 80, 0)
    assert questions_needed(claim, wild, len(claims())) is None
    words = decide({**others, "dots": wild})["dots"].words
    assert words == "undecided: more questions would not decide it, as the tasks differ too much"
    # A spread of which an estimate of 16 tasks cannot say whether it is too large.
    uncertain = Evidence({str(n): 14.0 * (n % 2) for n in range(N_TASKS)}, 10.0, 50, 80, 0)
    assert questions_needed(claim, uncertain, len(claims())) is None
    close = Evidence({str(n): claim.delta + 1 + n % 2 - 0.9 * (n % 3) for n in range(N_TASKS)}, 0.01, 500, 80, 0)
    assert decide({**others, "dots": close})["dots"].words.startswith("undecided: the effect is close")
    assert "more questions may not decide it" in decide({**others, "dots": uncertain})["dots"].words


def test_power_grows_with_questions_and_is_the_level_at_delta():
    claim = claims()["masks"]
    at_null = [power(claim, 0.0, questions, 13) for questions in (100, 400, 1600)]
    assert at_null == sorted(at_null)
    assert power(claim, claim.delta, 400, 1) == pytest.approx(LEVEL / 2)


@pytest.mark.parametrize("times", [0, 1])
def test_at_most_one_report_in_twenty_is_wrong(times):
    """Over reports of all claims with a true effect of nothing, or of delta itself, with 300 reports."""
    rng, kinds = np.random.default_rng(3), Counter[bool]()
    wrong = {"reproduced", "the opposite"} | ({"not reproduced"} if times else set())
    for _ in range(300):
        evidence = {
            name: Evidence(
                {str(n): rng.normal(times * claim.delta, claim.delta / 2) for n in range(N_TASKS)}, 0.1, 100, 80, 0
            )
            for name, claim in claims().items()
        }
        kinds[any(one.kind in wrong for one in decide(evidence).values())] += 1
    assert kinds[True] <= 27  # 5% is 15; 27 or more have a chance of 0.3%


def test_near_examples_are_the_last_fifth_of_the_places_and_far_ones_the_first() -> None:
    gradients = [1.0, 3.0, *[9.0] * 6, 8.0, 4.0]  # of ten examples; their fifths have means of 2 and 6
    rows = [
        {"task": task, "reordering": n, "place": place, "gradient": gradient, "questions": 3}
        for task in "ab"
        for n in range(2)
        for place, gradient in enumerate(gradients, 1)
    ]
    model = Model("model", "", None, None, (), {}, ("2.2", None), analyses={"attribution_examples": {"rows": rows}})
    model.answers[SLOT] = {task: Answers(0.75, 4, "RRRW") for task in "ab"}
    found = evidence_of(model)["gradients_near"]
    assert found.effects == pytest.approx({"a": math.log(3), "b": math.log(3)})
    assert (found.questions, found.reference) == (3, 75.0)
