"""Examples for the built-in model, generated from the suite's words but different in form from its tasks."""

from collections.abc import Iterator
from random import Random

from transformers import PreTrainedTokenizerBase

from mdlm_finetune.collator import Example
from mdlm_finetune.options import FinetuneOptions
from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.options import OptionError


def generated_texts(seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, answer), endless: word facts, and questions under a named rule with up to 7 examples, no distractors."""
    rng = Random(seed)
    while True:
        if rng.random() < 0.5:
            document = corpus.word_fact(rng)
        else:
            document = corpus.few_shot(rng.randint(1, 8), 0, rng, named=True)
        at = document.answers[-1]
        yield "".join(document.pieces[:at]), document.pieces[at]


def generated_examples(options: FinetuneOptions, tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    """`n_examples` generated texts in tokens. Raises OptionError where one is longer than `max_length` allows."""
    examples = []
    for id, (prompt, answer) in zip(range(options.n_examples), generated_texts(options.seed), strict=False):
        prompt_ids = tokenizer(prompt)["input_ids"]
        answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        if len(prompt_ids) + len(answer_ids) >= options.max_length:
            raise OptionError(
                f"max_length={options.max_length} is too short for the generated data, which has examples of "
                f"{len(prompt_ids) + len(answer_ids)} tokens, with a mask behind them"
            )
        examples.append(Example(id, prompt_ids, answer_ids))
    return examples
