"""`mdlm-leaderboard power`: how many questions a difference takes, planned before anything is run."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.markdown import markdown_table

CORRELATIONS = (0.0, 0.3, 0.5, 0.7)  # of two runs' answers to a question; two settings of one model are near the last
_POWER, _LEVEL = 0.8, 0.05


def power_of(n_questions: int, accuracies: Sequence[float], *, correlation: float, repeats: int, cluster: int) -> float:
    """The chance that `difference`'s t test finds two runs of these expected scores (from 0 to 1) different.

    correlation: of any two answers to a question, by one run or by both. So `repeats` answers to each question divide
        the variance of a difference by their number.
    cluster: the number of questions that count as one, as if they all gave the same answer: the worst case.
    """
    from scipy.special import stdtrit
    from scipy.stats import nct

    clusters = n_questions // cluster
    if clusters < 2:
        return 0.0
    first, second = (score * (1 - score) for score in accuracies)
    of_answer = first + second - 2 * correlation * math.sqrt(first * second)
    error = math.sqrt(of_answer / repeats / clusters + (n_questions * repeats) ** -2)
    quantile, shift = stdtrit(clusters - 1, 1 - _LEVEL / 2), abs(accuracies[1] - accuracies[0]) / error
    return float(nct.sf(quantile, clusters - 1, shift) + nct.cdf(-quantile, clusters - 1, shift))


def questions_for(power: Callable[[int], float], cluster: int) -> int:
    """The fewest questions, whole clusters, whose power is 80%; found by bisection."""

    def is_enough(clusters: int) -> bool:
        return power(clusters * cluster) >= _POWER

    high = next(2**n for n in count(1) if is_enough(2**n))
    return bisect_left(range(high), True, lo=high // 2 + 1, key=is_enough) * cluster


def power_in_words(
    accuracy: float,
    difference: float,
    *,
    correlation: float | None = None,
    repeats: int = 1,
    cluster: int = 1,
    questions: int | None = None,
) -> str:
    """A table of correlations, or of the one that is given, from percent and points.

    Raises OptionError for what cannot be.
    """
    other = accuracy + difference
    if not (0 < accuracy < 100 and 0 < other < 100 and difference):
        raise OptionError(f"--accuracy {accuracy:g} and {other:g} must differ, between 0 and 100")
    if correlation is not None and not 0 <= correlation < 1:
        raise OptionError(f"--correlation must be from 0 to below 1, not {correlation:g}")
    if min(repeats, cluster) < 1:
        raise OptionError("--repeats and --cluster must be at least 1")
    accuracies = accuracy / 100, other / 100
    rows = []
    for one in CORRELATIONS if correlation is None else (correlation,):
        power = partial(power_of, accuracies=accuracies, correlation=one, repeats=repeats, cluster=cluster)
        found = [] if questions is None else [f"{100 * power(questions):.0f}%"]
        rows.append([f"{one:g}", f"{questions_for(power, cluster):,}", *found])
    asked = "" if repeats == 1 else f", each asked {repeats} times"
    alike = "" if cluster == 1 else f", if the {cluster} of a cluster count as one"
    shown = [] if questions is None else [f"power of {questions:,}"]
    table = markdown_table(["correlation of the two runs' answers", f"questions for {_POWER:.0%}", *shown], rows)
    return f"{accuracy:g} against {other:g}%{asked}{alike}, by the paired t test of `compare` (5%):\n\n{table}"
