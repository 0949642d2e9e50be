"""What can be scored on each task of the suite without its examples: `python -m mdlm_lm_eval.tasks.baselines`.

Word frequencies are those of `wordfreq` (pip install wordfreq). `--rules` prints what can be scored on `mdlm_rules` by
the letters of its examples' words, or from the last few examples.
"""

from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from random import Random

import numpy as np

from . import prompts, rule_sets
from .questions import DEFAULT_SEED, DISTRACTOR_RULES, WRONG_CATEGORIES, Question, load_words, shuffled, test_questions

N_FOLDS = 5
N_RELEVANT, N_DISTRACTORS = 10, 40  # examples of a question
Features = Callable[[str], Sequence[str]]
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


def capital(word: str) -> list[str]:
    """Whether a word begins with a capital."""
    return ["capital" if word[0].isupper() else "none"]


def letters(word: str, *sizes: int) -> list[str]:
    """So many letters in a row, with marks for the beginning and the end."""
    marked = f"^{word.lower()}$"
    return [marked[at : at + size] for size in sizes for at in range(len(marked) - size + 1)]


def of_examples(examples: Sequence[Question], features: Features) -> Scores:
    """How often an option's features are in right words of the examples, minus how often in wrong ones."""
    found: defaultdict[str, float] = defaultdict(float)
    for question in examples:
        for at, option in enumerate(question.options):
            for feature in features(option):
                found[feature] += 1 if at == question.answer else -1 / (len(question.options) - 1)
    return lambda question: [sum(found[feature] for feature in features(option)) for option in question.options]


def by_letters(features: Features) -> float:
    """Percent of `mdlm_rules` right by features of words alone, in the ten relevant examples of each question."""
    found = []
    for rule, distractor in product(WRONG_CATEGORIES, DISTRACTOR_RULES):
        asked = rule_sets.asked_sets(rule, distractor).values()
        for triple in rule_sets.triples_of(rule):
            examples = rule_sets.example_sets(triple, distractor, N_RELEVANT)
            reader = of_examples([one.question(rule) for one in examples], features)
            found.append(accuracy([one.question(rule) for one in asked if one.triple == triple], reader))
    return float(np.mean(found))


def from_last(n: int) -> float:
    """Percent of `mdlm_rules` right by knowing all words and reading the last `n` examples, which are mixed."""
    marks = [True] * N_RELEVANT + [False] * N_DISTRACTORS
    relevant = [
        any(prompts.mixed(marks, [], Random(f"mdlm mixed order {' '.join(triple)} {name} {DEFAULT_SEED}"))[-n:])  # type: ignore[arg-type]
        for triple, name in product(rule_sets.TRIPLES, DISTRACTOR_RULES)
    ]
    return 100 * float(np.mean([1.0 if one else 1 / 3 for one in relevant]))


def rules_table() -> str:
    """What is right in `mdlm_rules`, in percent, as Markdown."""
    readers: dict[str, Features] = {
        "capitals of the examples' words": capital,
        "their trigrams": lambda word: letters(word, 3),
        "capitals and trigrams": lambda word: capital(word) + letters(word, 3),
        "capitals, bigrams and trigrams": lambda word: capital(word) + letters(word, 2, 3),
    }
    rows = [(name, by_letters(features)) for name, features in readers.items()]
    rows += [(f"all words known, the last {n} of 50 examples read", from_last(n)) for n in (1, 3, 5, 20)]
    return "\n".join(["|reader|right|", "|---|---|", *(f"|{name}|{score:.1f}|" for name, score in rows)])


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
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rules", action="store_true", help="mdlm_rules")
    print(rules_table() if parser.parse_args().rules else table())
