"""Examples to train on: generated for the built-in model, or instruction data."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from datasets import load_dataset
from transformers import PreTrainedTokenizerBase

from mdlm_finetune.collator import Example
from mdlm_lm_eval.default_model.training import corpus
from mdlm_lm_eval.options import OptionError

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


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


def stored_texts(data: str, seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, answer) of a JSONL or Parquet file or of a hub data set's train split, streamed and shuffled by seed."""
    file_format = FILE_FORMATS.get(Path(data).suffix)
    if file_format is None:
        rows = load_dataset(data, split="train", streaming=True)
    else:
        rows = load_dataset(file_format, data_files=data, split="train", streaming=True)
    for number, row in enumerate(rows.shuffle(seed=seed, buffer_size=10_000)):
        yield prompt_and_answer(row, number)


def prompt_and_answer(row: Mapping[str, Any], number: int) -> tuple[str, str]:
    """Of prompt/response, messages, Alpaca or OpenOrca columns. Raises OptionError where there is no answer."""
    if "messages" in row:
        *before, last = row["messages"]
        prompt, answer = "\n".join(message["content"] for message in before), last["content"]
    elif "response" in row:
        parts = [row.get("system_prompt"), row.get("question") or row.get("prompt")]
        prompt, answer = "\n".join(part for part in parts if part), row["response"]
    elif "output" in row:
        prompt = "\n".join(part for part in (row.get("instruction"), row.get("input")) if part)
        answer = row["output"]
    else:
        raise OptionError(f"row {number} has the columns {', '.join(row)}: none of response, messages, output")
    if not answer:
        raise OptionError(f"row {number} of the data has no answer")
    return prompt, answer


def tokenized(
    texts: Iterable[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, *, n_examples: int, max_length: int
) -> tuple[list[Example], int]:
    """The first `n_examples` that leave room for a mask within `max_length` tokens, and how many did not.

    Raises OptionError where none remains.
    """
    examples: list[Example] = []
    skipped = 0
    for prompt, answer in islice(texts, 10 * n_examples):
        prompt_ids = tokenizer(prompt)["input_ids"]
        answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        if len(prompt_ids) + len(answer_ids) >= max_length:
            skipped += 1
            continue
        examples.append(Example(len(examples), prompt_ids, answer_ids))
        if len(examples) == n_examples:
            break
    if not examples:
        raise OptionError(f"the data holds no example of fewer than {max_length} tokens ({skipped} were longer)")
    return examples, skipped
