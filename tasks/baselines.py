"""What can be scored on the suite without its examples: `python -m mdlm_lm_eval.tasks.baselines` prints README's table.

Word frequencies are those of `wordfreq` (pip install wordfreq).
"""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import numpy as np

from .questions import DISTRACTOR_RULES, WRONG_CATEGORIES, Question, load_words, shuffled, test_questions

N_FOLDS = 5
Scores = Callable[[Question], Sequence[float]]


def accuracy(tests: Sequence[Question], scores: Scores) -> float:
    """Percent of the questions right by taking the option of the highest score, any of equal ones."""
    found = [list(scores(question)) for question in tests]
    credits = [
        (row[question.answer] == max(row)) / row.count(max(row)) for row, question in zip(found, tests, strict=True)
    ]
    return 100.0 * sum(credits) / len(credits)


def asked_by_a_rule(question: Question) -> list[float]:
    """1 for every option that one of the suite's rules could ask for: what a reader knows who knows all of them."""
    return [
        float(
            any(
                question.options[at] in _words()[rule]
                and all(_is_of(other, wrong) for other in question.options[:at] + question.options[at + 1 :])
                for rule, wrong in WRONG_CATEGORIES.items()
            )
        )
        for at in range(len(question.options))
    ]


def odd_category(question: Question) -> list[float]:
    """Minus the number of options that are of the same category."""
    categories = [next(name for name, words in _words().items() if option in words) for option in question.options]
    return [-categories.count(category) for category in categories]


def spelling(tests: Sequence[Question]) -> Scores:
    """Log-odds by a logistic regression on up to four letters in a row; a word is scored by one that never saw it."""
    words = sorted({option for question in tests for option in question.options})
    fold = {word: n % N_FOLDS for n, word in enumerate(shuffled(words, Random("folds")))}
    options = [option for question in tests for option in question.options]
    from sklearn.feature_extraction.text import CountVectorizer  # slow to import, which --help does not wait for
    from sklearn.linear_model import LogisticRegression

    is_right = np.array([at == question.answer for question in tests for at in range(len(question.options))])
    vectors = CountVectorizer(analyzer="char_wb", ngram_range=(1, 4), lowercase=False, binary=True)
    seen, asked = vectors.fit_transform(options), vectors.transform(words)
    folds = np.array([fold[option] for option in options])
    log_odds: dict[str, float] = {}
    for n in range(N_FOLDS):
        learner = LogisticRegression(max_iter=1000).fit(seen[folds != n], is_right[folds != n])
        found = learner.decision_function(asked)
        log_odds |= {word: found[at] for at, word in enumerate(words) if fold[word] == n}
    return lambda question: [log_odds[option] for option in question.options]


def _is_of(word: str, categories: Sequence[str]) -> bool:
    return any(word in _words()[category] for category in categories)


@cache
def _words() -> dict[str, frozenset[str]]:
    """Category -> its words, to look them up."""
    return {category: frozenset(words) for category, words in load_words().items()}


def table() -> str:
    """Baselines of every task, in percent, as Markdown."""
    from wordfreq import zipf_frequency

    rows = [
        "|task|no example|odd category|spelling|most frequent|least frequent|",
        "|---|---|---|---|---|---|",
    ]
    found = []
    for rule in WRONG_CATEGORIES:
        for distractor in DISTRACTOR_RULES:
            tests = test_questions(rule, distractor)
            readers: list[Scores] = [
                asked_by_a_rule,
                odd_category,
                spelling(tests),
                lambda question: [zipf_frequency(option, "en") for option in question.options],
                lambda question: [-zipf_frequency(option, "en") for option in question.options],
            ]
            found.append([accuracy(tests, reader) for reader in readers])
            rows.append(f"|{rule}_{distractor}|" + "|".join(f"{score:.1f}" for score in found[-1]) + "|")
    rows.append("|mean|" + "|".join(f"{score:.1f}" for score in np.mean(found, axis=0)) + "|")
    return "\n".join(rows)


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    print(table())
