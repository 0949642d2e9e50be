"""Whether a ranking lasts when the prompts are worded otherwise: Kendall's tau, and who beats whom how often."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

from mdlm_lm_eval.results.statistics import Interval, t_interval


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Tau-b of two lists of scores of the same models: 1 for one order, -1 for the reverse; nan where all are equal."""
    from scipy.stats import kendalltau  # takes long to import

    return float(kendalltau(first, second).statistic)


def taus(by_template: Mapping[int, Sequence[float]]) -> list[float]:
    """Tau of every two templates' rankings. `by_template` are the scores of the same models in one order."""
    return [kendall_tau(*pair) for pair in combinations(by_template.values(), 2)]


def beats(first: Sequence[float], second: Sequence[float]) -> tuple[float, Interval]:
    """The share of templates in which the first model is better, and its lead with the interval over templates.

    Scores are in the templates' order; the lead is paired by template.
    """
    leads = [one - other for one, other in zip(first, second, strict=True)]
    return fmean(lead > 0 for lead in leads), t_interval(leads)
