"""Examples for the built-in model, generated from the suite's words.

Random walks have nothing of the suite's tasks, as the paper trains on other text than it measures; named rules are
questions in another form.
"""

from collections.abc import Callable, Iterator
from random import Random

from transformers import PreTrainedTokenizerBase

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.collator import Example
from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.default_model.training.walks import random_walks
from mdlm_lm_eval.options import OptionError

HELD_OUT_RULES = ("animal", "emotion")  # no question is asked under them, so that the suite has tasks unseen here
WORD_FACTS = 0.2  # share of the texts


def named_rules(seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, answer), endless: word facts ("knit is: verb"), and long documents of questions under a named rule.

    A document begins with its rule's name, which the suite's prompts never do, and holds 1 to 11 questions of it among
    up to 40 of a number rule. Half of the rules are ones that the suite has not: other categories against others.
    """
    rng = Random(seed)
    while True:
        document = corpus.word_fact(rng) if rng.random() < WORD_FACTS else _named_rule_among_others(rng)
        at = document.answers[-1]
        yield "".join(document.pieces[:at]), document.pieces[at]


def _named_rule_among_others(rng: Random) -> corpus.Document:
    right, wrong = corpus.draw_rule(rng)
    while right in HELD_OUT_RULES:
        right, wrong = corpus.draw_rule(rng)
    number_rule = rng.choice(corpus.questions.DISTRACTOR_RULES)
    is_relevant = [True] * rng.randint(1, 10) + [False] * rng.randint(0, 40)
    rng.shuffle(is_relevant)
    pieces = ["Rule: ", right]
    for relevant in [*is_relevant, True]:
        question = corpus.training_question(right if relevant else number_rule, wrong, rng)
        pieces += corpus.question_pieces(question, first=False)
    return corpus.Document(pieces, [len(pieces) - 2])


# By the name that `dataset_name` gives (GENERATED in recipe.py): seed -> endless (prompt, answer).
GENERATORS: dict[str, Callable[[int], Iterator[tuple[str, str]]]] = {
    "random_walks": random_walks,
    "named_rules": named_rules,
}


def generated_examples(arguments: FinetuneArguments, tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    """Generated texts in tokens, as many as the run uses. Raises OptionError where one is too long for `max_length`."""
    texts = GENERATORS[str(arguments.dataset_name)](arguments.seed)
    examples = []
    for id, (prompt, answer) in zip(range(arguments.usable_samples), texts, strict=False):
        prompt_ids = tokenizer(prompt)["input_ids"]
        answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        if len(prompt_ids) + len(answer_ids) >= arguments.max_length:
            raise OptionError(
                f"max_length={arguments.max_length} is too short for {arguments.dataset_name}, which has examples of "
                f"{len(prompt_ids) + len(answer_ids)} tokens, with a mask behind them"
            )
        examples.append(Example(id, prompt_ids, answer_ids))
    return examples
