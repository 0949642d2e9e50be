"""Splits a single-token score into reading, format and the end of text, from the recorded first tokens.

All shares are about the likeliest token in the pass that filled the slot, before any token was banned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from mdlm_lm_eval.results.result_file import ResultFile, TaskResult
from mdlm_lm_eval.results.statistics import Score, clusters_of, median_of_seeds, score_of_questions

#: Share -> the letters of `labels.LabelTokens.letter` that it counts.
SHARES = {
    "decoded": "R",  # the right label is the likeliest token
    "among_labels": "RETO",  # the right label is the likeliest label
    "label": "RWL",  # any label is the likeliest token
    "eos": "Ee",
    "end_of_turn": "Tt",
    "other": "Oo",
}
#: Share -> its name in sentences and cards.
WORDS = {
    "decoded": "as decoded",
    "among_labels": "among letters",
    "eos": "EOS",
    "end_of_turn": "end of turn",
    "other": "other tokens",
}
_OF_ANSWER = ("decoded", "among_labels")  # need the right label


@dataclass(frozen=True)
class Decomposition:
    """The shares of `SHARES` over some tasks' questions, and the mean entropy of the first token in nats.

    `decoded` and `among_labels` are missing if the right label is not known.
    """

    shares: Mapping[str, Score]
    entropy: float

    @property
    def in_words(self) -> str:
        """The shares, such as "4.7% as decoded, 68.1% among letters, 95.2% EOS"; ends and other tokens if any occur."""
        known = {name: self.shares[name].mean for name in WORDS if name in self.shares}
        words = [f"{100 * one:.1f}% {WORDS[name]}" for name, one in known.items() if one or name in _OF_ANSWER]
        return ", ".join([*words, f"entropy {self.entropy:.2f}"])


def decomposition_of(tasks: Sequence[TaskResult], names: Iterable[str] = SHARES) -> Decomposition | None:
    """The shares `names` of several tasks, each with the same weight; None if one has no record of first tokens."""
    recorded = [task.first_token for task in tasks]
    if not all(one.get("letters") for one in recorded):
        return None
    letters = [one["letters"] for one in recorded]
    likeliest, sizes = np.array([*"".join(letters)]), [*map(len, letters)]
    clusters = clusters_of(of_set for task in tasks for of_set in _sets(task))
    shares = {
        name: score_of_questions(clusters, np.isin(likeliest, [*SHARES[name]]).astype(float), sizes, sum(sizes))
        for name in names
        if name not in _OF_ANSWER or "L" not in likeliest
    }
    return Decomposition(shares, fmean(one["entropy"] for one in recorded))


def over_seeds(found: Sequence[Decomposition]) -> Decomposition:
    """The median of each share over several training seeds."""
    shares = {name: median_of_seeds([one.shares[name] for one in found]) for name in found[0].shares}
    return Decomposition(shares, fmean(one.entropy for one in found))


def said_of(file: ResultFile) -> list[str]:
    """A line for each top group or task of a file with recorded first tokens: its masks and its decomposition."""
    lines = {}
    for result in file.top:
        found = decomposition_of(file.tasks_of(result))
        low, high = result.effective.get("asked_masks", (0, 0))
        masks = f"{low} to {high}" if low != high else str(high)
        if found:
            lines[result.name] = f"{masks} mask{'' if masks == '1' else 's'}: {found.in_words}"
    return [f"{name}, {line}" for name, line in lines.items()] if len(lines) > 1 else [*lines.values()]


def _sets(task: TaskResult) -> list[str]:
    """The set of each question; if they are not recorded, each question is a set of its own."""
    letters = task.first_token["letters"]
    sets = (task.first_token.get("sets") or "").split()
    return sets if len(sets) == len(letters) else [f"{task.name} {n}" for n in range(len(letters))]
