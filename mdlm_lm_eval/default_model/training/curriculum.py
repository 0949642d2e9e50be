"""The curriculum: from what category a word is of to few-shot documents with distractors, in two parts."""

from dataclasses import dataclass
from random import Random

from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.corpus import Document
from mdlm_lm_eval.tasks import questions


@dataclass(frozen=True)
class Stage:
    """A stretch of the curriculum: documents of up to these many examples in windows of `length` tokens."""

    name: str
    length: int
    max_relevant: int
    max_distractors: int
    named: float  # share of the few-shot documents that begin with their rule's name
    facts: float  # share of word facts among the documents


WORDS = (
    Stage("word facts", 6, 0, 0, named=1.0, facts=1.0),
    Stage("one question", 12, 1, 0, named=1.0, facts=0.3),
    Stage("a few examples", 64, 6, 0, named=0.5, facts=0.15),
)
FEW_SHOT = (
    Stage("few-shot", 112, 11, 0, named=0.3, facts=0.15),
    Stage("a few distractors", 208, 11, 12, named=0.2, facts=0.15),
)
STAGES = (*WORDS, *FEW_SHOT)


def draw_document(stages: tuple[Stage, ...], rng: Random) -> Document:
    """A document of the last of these stages, one in four of an earlier one."""
    *earlier, stage = stages
    if earlier and rng.random() < 0.25:
        stage = earlier[questions.draw(rng, len(earlier))]
    return draw_from(stage, rng)


def draw_from(stage: Stage, rng: Random) -> Document:
    """A document of the stage: mostly few-shot ones, some word facts."""
    if rng.random() < stage.facts:
        return corpus.word_fact(rng)
    fewest = min(3, stage.max_relevant)
    n_relevant = fewest + questions.draw(rng, stage.max_relevant - fewest + 1)
    n_distractors = questions.draw(rng, stage.max_distractors + 1)
    return corpus.few_shot(n_relevant, n_distractors, rng, named=rng.random() < stage.named)
