"""The curriculum: from questions under a named rule to few-shot documents with many distractors."""

from dataclasses import dataclass
from random import Random

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.default_model.training.suite import questions


@dataclass(frozen=True)
class Stage:
    """A stretch of the curriculum: documents of up to these many examples in windows of `length` tokens."""

    name: str
    length: int
    max_relevant: int
    max_distractors: int
    named: float


STAGES = (
    Stage("named rules", 64, 6, 0, 1.0),
    Stage("few-shot", 112, 11, 0, 0.4),
    Stage("a few distractors", 208, 11, 12, 0.3),
    Stage("many distractors", 480, 11, 40, 0.2),
)


def draw_document(stage: Stage, rng: Random) -> Document:
    """A document of the stage: mostly few-shot ones, some word facts."""
    if rng.random() < 0.15:
        return corpus.word_fact(rng)
    n_relevant = min(stage.max_relevant, 3 + questions.draw(rng, stage.max_relevant - 2))
    n_distractors = questions.draw(rng, stage.max_distractors + 1)
    return corpus.few_shot(n_relevant, n_distractors, rng, named=rng.random() < stage.named)
