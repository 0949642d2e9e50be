"""Instruction data, from files or the hub, as examples of a model's own format."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datasets import load_dataset
from datasets.exceptions import DatasetNotFoundError
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from mdlm_finetune.collator import Example
from mdlm_finetune.options import FinetuneOptions
from mdlm_lm_eval.options import OptionError

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
COLUMNS = (
    "messages; prompt, response; system_prompt, question, response (OpenOrca); instruction, input, output (Alpaca)"
)
TURN_SEPARATOR = "\n\n"

Message = dict[str, str]  # "role" and "content"


def stored_rows(options: FinetuneOptions) -> Iterator[Mapping[str, Any]]:
    """Rows of a JSONL or Parquet file or of a hub data set, streamed, in an order that the seed fixes.

    Raises OptionError for data that cannot be found or read.
    """
    file_format = FILE_FORMATS.get(Path(options.data).suffix)
    try:
        if file_format is None:
            rows = load_dataset(options.data, split=options.split, streaming=True)
        else:
            rows = load_dataset(file_format, data_files=options.data, split="train", streaming=True)
        yield from rows.shuffle(seed=options.seed, buffer_size=10_000)
    except StopIteration:
        return  # datasets looks for the first row of an empty file
    except (OSError, ValueError, DatasetNotFoundError) as error:
        raise OptionError(f"data={options.data}: cannot be read: {' '.join(str(error).split())}") from error


def conversation(row: Mapping[str, Any]) -> tuple[list[Message], str | None]:
    """The messages before the answer, and the answer, None where the row has none.

    Raises OptionError for columns that are none of `COLUMNS`.
    """
    if "messages" in row:
        messages = list(row["messages"] or [])
        if not messages or messages[-1]["role"] != "assistant":
            return messages, None
        return messages[:-1], messages[-1]["content"] or None
    if "response" in row and ("question" in row or "prompt" in row):
        system, user, answer = row.get("system_prompt"), row.get("question") or row.get("prompt"), row["response"]
    elif "instruction" in row and "output" in row:
        system, answer = None, row["output"]
        user = TURN_SEPARATOR.join(part for part in (row["instruction"], row.get("input")) if part)
    else:
        raise OptionError(f"the data has the columns {', '.join(row)}; allowed are {COLUMNS}")
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": user or ""}], answer or None


def instruction_examples(options: FinetuneOptions, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Example], str]:
    """The first `n_examples` rows that have an answer and leave room for a mask, and a sentence on what was skipped.

    The answer of a base model ends in EOS, that of an instruct model (`chat_template`) in whatever its template puts
    behind an assistant's message; both belong to the answer, as in LLaDA's own fine-tuning. Raises OptionError where
    nothing remains.
    """
    if options.chat_template and not tokenizer.chat_template:
        raise OptionError(f"chat_template=True: the tokenizer of {options.pretrained} has no chat template")
    examples: list[Example] = []
    without_answer = too_long = 0
    for messages, answer in map(conversation, tqdm(stored_rows(options), desc="reading the data", unit=" rows")):
        if answer is None:
            without_answer += 1
            continue
        tokenize = _templated if options.chat_template else _plain
        prompt_ids, answer_ids = tokenize(messages, answer, tokenizer)
        if len(prompt_ids) + len(answer_ids) >= options.max_length:
            too_long += 1
            continue
        examples.append(Example(len(examples), prompt_ids, answer_ids))
        if len(examples) == options.n_examples:
            break
    skipped = f"{without_answer} rows without an answer and {too_long} longer than {options.max_length} tokens skipped"
    if not examples:
        raise OptionError(f"data={options.data} holds no example to train on: {skipped}")
    return examples, f"{len(examples)} examples; {skipped}"


def _plain(messages: list[Message], answer: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    prompt = "".join(message["content"] + TURN_SEPARATOR for message in messages)
    answer_ids: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return tokenizer(prompt)["input_ids"], [*answer_ids, tokenizer.eos_token_id]


def _templated(messages: list[Message], answer: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    before = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], tokenize=False)
    if not whole.startswith(before):
        raise OptionError(
            "chat_template=True: this model's template renders a prompt differently once it is answered, "
            "so that the answer cannot be told from the prompt"
        )
    prompt_ids: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    return prompt_ids, tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]
