"""The curriculum: from word facts to few-shot documents as long as the suite's."""

from dataclasses import dataclass
from random import Random

from mdlm_lm_eval.tasks import questions
from training import corpus
from training.corpus import Document


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum. It ends when `accuracy` of its masked answers are right, or after `most` steps."""

    name: str
    accuracy: float
    n_relevant: int = 0  # questions of the document's word rule; 0 means only word facts
    n_distractors: tuple[int, int] = (0, 0)  # the fewest and the most
    named: float = 0.0  # share of batches with documents that begin with the name of their rule
    contrastive: float = 0.0  # share of contrastive documents (see `corpus.few_shot`)
    short: float = 0.0  # share of batches with documents of three questions and no distractors
    tokens: float = 1.0  # of the training's tokens in a step
    most: int = 250


STAGES = (
    Stage("word facts", 0.95),
    Stage("one question, rule named", 0.93, 1, named=1.0, tokens=0.4, most=500),
    Stage("3 questions, rule named", 0.7, 3, named=1.0, tokens=0.5, most=150),
    # Here models learn to read examples: all questions of a document have one rule, and no other.
    Stage("8 questions, half named", 0.75, 8, named=0.5, most=1200),
    # Here they learn to read the answers: most documents have options of the same three rules throughout.
    Stage("10 questions", 0.85, 10, named=0.15, contrastive=0.75, most=1000),
    Stage("14 distractors", 0.85, 10, (14, 14), named=0.1, contrastive=0.75, most=400),
    Stage("up to 40 distractors", 0.86, 10, (0, 40), named=0.05, contrastive=0.75, short=0.15, most=500),
)


def documents(stage: Stage, tokens: int, nonsense: float, rng: Random) -> list[Document]:
    """Few-shot documents of one length: at least 12, and about `tokens` tokens. `nonsense`: share with such a rule."""
    named = rng.random() < stage.named
    fewest, most = stage.n_distractors
    n_relevant, n_distractors = stage.n_relevant, fewest + questions.draw(rng, most - fewest + 1)
    if rng.random() < stage.short:
        n_relevant, n_distractors = 3, 0
    n_documents = max(12, int(stage.tokens * tokens) // (9 * (n_relevant + n_distractors)))
    found = []
    for _ in range(n_documents):
        rule = corpus.draw_rule(rng, nonsense)
        is_so, counts = rng.random() < stage.contrastive, (n_relevant, n_distractors)
        found.append(corpus.few_shot(rule, *counts, rng, named=named, contrastive=is_so))
    return found
