"""Generated examples for the built-in model.

Number questions stand in the suite's prompts as distractors, and the suite never asks one: the paper, too, trains on
other text than it measures.
"""

from collections.abc import Iterator
from random import Random

from transformers import PreTrainedTokenizerBase

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.collator import Example
from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.options import OptionError


def number_questions(seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, answer), endless: answered questions for the largest number, or the smallest, and one to answer."""
    rng = Random(seed)
    while True:
        *prompt, letter, closing = corpus.number_questions(rng.randint(*corpus.N_NUMBER_QUESTIONS), rng).pieces
        yield "".join(prompt), letter + closing


def generated_examples(arguments: FinetuneArguments, tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    """Generated texts in tokens, as many as the run uses, EOS after each answer.

    Raises OptionError where one is too long for `max_length`.
    """
    texts = number_questions(arguments.seed)
    examples = []
    for id, (prompt, answer) in zip(range(arguments.usable_samples), texts, strict=False):
        prompt_ids = tokenizer(prompt)["input_ids"]
        answer_ids = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        if len(prompt_ids) + len(answer_ids) >= arguments.max_length:
            raise OptionError(
                f"max_length={arguments.max_length} is too short for {arguments.dataset_name}, which has examples of "
                f"{len(prompt_ids) + len(answer_ids)} tokens, with a mask behind them"
            )
        examples.append(Example(id, prompt_ids, answer_ids))
    return examples
