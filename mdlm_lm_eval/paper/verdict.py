"""Decides the paper's claims about one model, by the committed table `claims.yaml`. Reports and sweeps read it here.

A claim is about the mean effect over the suite's tasks, which is positive if the paper is right. The test is Student's
t over tasks, two-sided, of whether the mean effect is delta, the smallest effect that counts. Holm's method corrects it
for all claims that a run declares, so that in at most 5% of reports any verdict is wrong about a mean of delta.
"""

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from scipy import stats

LEVEL = 0.05
POWER = 0.8  # of the number of questions that a report asks for
N_TASKS = 16  # of the few-shot suite
LEAST_REFERENCE = 45.0  # percent right of the reference cell; 33.3 is chance
MOST_WITHOUT_LETTER = 20.0  # percent of the reference cell's answers
_TABLE = Path(__file__).parent / "claims.yaml"

Kind = Literal[
    "reproduced",
    "not reproduced",
    "the opposite",
    "too few questions",
    "cannot tell",
    "at the ceiling",
    "nothing to recover",
]


@dataclass(frozen=True)
class Claim:
    """A line of `claims.yaml`, which says what the fields mean. `delta` is in the unit of effects."""

    name: str
    title: str
    experiment: str
    contrast: str
    reference: str
    delta: float
    task_sd: float
    question_sd: float
    scale: Literal["points", "ratio"] = "points"
    ceiling: float | None = None
    needs: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What a model's answers say about a claim.

    effects: task -> effect, in points of accuracy, or the natural logarithm of a ratio.
    noise: variance of a task's effect that comes from its questions, mean over tasks.
    questions: of each task.
    reference: percent right in the claim's reference cell.
    without_letter: percent of the reference cell's answers that are no letter.
    """

    effects: Mapping[str, float]
    noise: float
    questions: int
    reference: float
    without_letter: float


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim.

    effect, low, high: mean over tasks and the interval of the test that decided, in the unit of the evidence.
    level: that test's level, after Holm's method.
    needed: questions of each task that would decide a claim with too few; None if no number would.
    words: the verdict as a sentence without its first capital and full stop.
    """

    claim: Claim
    kind: Kind
    effect: float
    low: float
    high: float
    level: float
    questions: int
    words: str
    needed: int | None = None

    @property
    def in_short(self) -> str:
        """The kind of verdict. Too few questions are "undecided" where the number of them is not why."""
        is_reason = self.needed is not None and self.needed > self.questions
        return self.kind if self.kind != "too few questions" or is_reason else "undecided"


@cache
def claims() -> Mapping[str, Claim]:
    """Name -> claim, in the order of the report."""
    found = [Claim(**line) for line in yaml.safe_load(_TABLE.read_text(encoding="utf-8"))]
    return {one.name: replace(one, delta=math.log(one.delta)) if one.scale == "ratio" else one for one in found}


def digest() -> str:
    """The SHA-256 of the table of claims, which every report shows."""
    return hashlib.sha256(_TABLE.read_bytes()).hexdigest()


def decide(
    evidence: Mapping[str, Evidence], declared: Collection[str] = (), before: Mapping[str, Verdict] | None = None
) -> dict[str, Verdict]:
    """The verdicts on claims: name -> evidence, also of claims that turn out to be untestable.

    declared: all claims of the run, as planned before answers were seen; Holm's method corrects for them, whether they
        have evidence yet or not. By default, those with evidence.
    before: the verdicts on the model without its adapter, whose loss fine-tuning recovers.
    """
    asked = {name: claim for name, claim in claims().items() if name in evidence}
    n_claims = len({*evidence, *declared})
    untestable = {name: why for name, claim in asked.items() if (why := _gate(claim, evidence[name]))}
    tests = {name: _Test(asked[name], evidence[name]) for name in asked}
    levels = _levels({name: tests[name].probability for name in asked if name not in untestable}, n_claims)
    found: dict[str, Verdict] = {}
    for name, claim in asked.items():
        test, level = tests[name], levels.get(name, LEVEL / n_claims)
        low, high = test.interval(level)
        bases = before if name == "fine_tuning" and before else found
        needed = None
        if name in untestable:
            kind, words = untestable[name]
        elif claim.needs and (claim.needs not in bases or bases[claim.needs].kind != "reproduced"):
            kind, words = "nothing to recover", "nothing to recover: no loss to masks is reproduced"
        else:
            kind = words = _kind(claim.delta, low, high)
            if kind == "too few questions":
                needed = questions_needed(claim, evidence[name], n_claims)
                words = _too_few(claim, evidence[name], n_claims, needed)
        found[name] = Verdict(claim, kind, test.mean, low, high, level, evidence[name].questions, words, needed)
    return _qualified(found)


def power(claim: Claim, effect: float, questions: int, n_claims: int) -> float:
    """The chance that a mean effect, in the unit of `delta`, is told from delta, by the claim's declared deviations.

    `n_claims` is the number of declared claims. The level is Holm's first one, so that the chance is a lower bound.
    """
    error = math.sqrt((claim.task_sd**2 + claim.question_sd**2 / questions) / N_TASKS)
    distance = abs(effect - claim.delta) / error
    return float(stats.nct.sf(_critical(LEVEL / n_claims, N_TASKS), N_TASKS - 1, distance))


def questions_needed(claim: Claim, evidence: Evidence, n_claims: int, share_of_spread: float = 1.0) -> int | None:
    """Questions of each task that tell an effect of 0, or of twice delta, from delta in 80% of runs; None if none do.

    The tasks' spread is that of the evidence, times `share_of_spread`. The target is no effect that was seen, so that
    the number does not promise a verdict in either direction.
    """
    n_tasks = len(evidence.effects)
    spread = share_of_spread * float(np.var([*evidence.effects.values()], ddof=1))
    over_tasks = max(0.0, spread - evidence.noise)  # what is left with any number of questions
    needed = _critical(LEVEL / n_claims, n_tasks) + float(stats.t.ppf(POWER, n_tasks - 1))
    left = n_tasks * (claim.delta / needed) ** 2 - over_tasks
    return math.ceil(evidence.noise * evidence.questions / left) if left > 0 else None


class _Test:
    """Student's t test, over tasks, of whether a claim's mean effect is delta."""

    def __init__(self, claim: Claim, evidence: Evidence) -> None:
        effects = np.array([*evidence.effects.values()])
        self.n = len(effects)
        self.mean = float(effects.mean())
        self.error = float(effects.std(ddof=1)) / math.sqrt(self.n)
        if self.error:
            statistic = abs(self.mean - claim.delta) / self.error
            self.probability = 2 * float(stats.t.sf(statistic, self.n - 1))
        else:
            self.probability = float(self.mean == claim.delta)

    def interval(self, level: float) -> tuple[float, float]:
        """The ends of the effects that a test at this level does not reject."""
        half = _critical(level, self.n) * self.error
        return self.mean - half, self.mean + half


def _critical(level: float, n: int) -> float:
    """The two-sided critical value of Student's t over `n` tasks."""
    return float(stats.t.isf(level / 2, n - 1))


def _levels(probabilities: Mapping[str, float], n_claims: int) -> dict[str, float]:
    """The level that Holm's method tests each claim at. Claims after the first that is not rejected have its level."""
    levels: dict[str, float] = {}
    stopped = None
    for rank, name in enumerate(sorted(probabilities, key=lambda one: probabilities[one])):
        levels[name] = stopped or LEVEL / (n_claims - rank)
        if stopped is None and probabilities[name] > levels[name]:
            stopped = levels[name]
    return levels


def _gate(claim: Claim, evidence: Evidence) -> tuple[Kind, str] | None:
    """Why the answers cannot show the effect, whatever it is; None if they can."""
    if evidence.without_letter > MOST_WITHOUT_LETTER:
        share = f"{evidence.without_letter:.0f}% of its answers to “{claim.reference}” are no letter"
        return "cannot tell", f"cannot tell: {share}"
    if evidence.reference < LEAST_REFERENCE:
        share = f"{evidence.reference:.1f}% right with “{claim.reference}”, where chance is 33.3"
        return "cannot tell", f"cannot tell: it does not use the examples ({share})"
    if claim.ceiling is not None and evidence.reference > claim.ceiling:
        return "at the ceiling", f"at the ceiling: {evidence.reference:.1f}% right with “{claim.reference}”"
    return None


def _kind(delta: float, low: float, high: float) -> Kind:
    if low > delta:
        return "reproduced"
    if high < -delta:
        return "the opposite"
    if high < delta:
        return "not reproduced"
    return "too few questions"


def _too_few(claim: Claim, evidence: Evidence, n_claims: int, needed: int | None) -> str:
    """The verdict's words. How much tasks differ is estimated from few tasks: "no number" needs its lower bound."""
    if needed is not None and needed <= evidence.questions:
        return "undecided: the effect is close to the smallest that counts"
    if needed is not None:
        return f"too few questions: {needed:,} per task would decide it"
    degrees = len(evidence.effects) - 1
    least = degrees / float(stats.chi2.ppf(0.975, degrees))  # of the spread: the lower end of its 95% interval
    if questions_needed(claim, evidence, n_claims, share_of_spread=least) is None:
        return "undecided: more questions would not decide it, as the tasks differ too much"
    return "undecided: more questions may not decide it, as the tasks seem to differ much"


def _qualified(found: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """The verdicts, with what a reproduced loss to masks is due to."""
    masks = found.get("masks")
    if masks is None or masks.kind != "reproduced":
        return dict(found)
    why = []
    letters, dots = found.get("masks_among_letters"), found.get("dots")
    if letters and letters.kind in ("not reproduced", "the opposite"):
        why.append("by ending the text")
    if dots and dots.kind in ("not reproduced", "the opposite"):
        why.append("anything appended hurts, masks no more than dots")
    words = "; ".join([masks.words, *why])
    return {**found, "masks": replace(masks, words=words)}
