"""Instruction data, from files or the hub, as examples of a model's own format."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from datasets import IterableDataset, load_dataset
from datasets.exceptions import DatasetNotFoundError
from jinja2 import TemplateError
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.collator import Example
from mdlm_finetune.objective import Objective
from mdlm_lm_eval.families import end_of_turn_ids
from mdlm_lm_eval.model.text import closing_ids
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line

LONGEST_LINE = 2**26  # characters
COLUMNS = (
    "messages; prompt, response; system_prompt, question, response (OpenOrca); instruction, input, output (Alpaca)"
)
TURN_SEPARATOR = "\n\n"
ROW_NUMBER = "__row_number__"  # a column that is added while reading

Message = dict[str, str]  # "role" and "content"


def stored_rows(arguments: FinetuneArguments) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a file or of a hub data set, numbered, streamed in an order that the seed fixes.

    Raises OptionError for data that cannot be found or read.
    """
    try:
        rows = _hub_rows(arguments) if arguments.train_file is None else _file_rows(Path(arguments.train_file))
        numbered = rows.map(lambda _, number: {ROW_NUMBER: number}, with_indices=True)
        for row in numbered.shuffle(seed=arguments.seed, buffer_size=10_000):
            yield row.pop(ROW_NUMBER), row
    except StopIteration:
        return  # datasets looks for the first row of an empty file
    except OptionError as error:
        raise OptionError(f"{_source(arguments)}: {error}") from error
    except (OSError, ValueError, ImportError, DatasetNotFoundError) as error:
        raise OptionError(f"{_source(arguments)}: cannot be read: {one_line(error)}") from error


def _hub_rows(arguments: FinetuneArguments) -> IterableDataset:
    split, config = arguments.dataset_train_split, arguments.dataset_config
    return load_dataset(arguments.dataset_name, config, split=split, streaming=True)


def _file_rows(path: Path) -> IterableDataset:
    if path.suffix not in (".jsonl", ".json", ".parquet"):
        raise OptionError("must be a .jsonl, .json or .parquet file")
    if not path.is_file():  # a pipe or a device would be read without end
        raise OptionError("there is no such file")
    if path.suffix == ".parquet":
        return load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    # Not by datasets: its JSON reader ends the process where rows are nested deeply, and gives all rows all columns.
    return IterableDataset.from_generator(_json_rows, gen_kwargs={"path": path})


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a list (.json), or of a file with one a line (.jsonl). Raises OptionError, which says where."""
    with path.open(encoding="utf-8") as file:
        lines = [file.read()] if path.suffix == ".json" else iter(lambda: file.readline(LONGEST_LINE), "")
        for number, line in enumerate(lines, start=1):
            if len(line) == LONGEST_LINE:
                raise OptionError(f"line {number} is longer than {LONGEST_LINE} characters")
            try:
                parsed = json.loads(line) if line.strip() else []
            except RecursionError as error:
                raise OptionError(f"line {number} is nested too deeply") from error
            except ValueError as error:
                raise OptionError(f"line {number} is no JSON: {one_line(error)}") from error
            for row in parsed if isinstance(parsed, list) else [parsed]:
                if not isinstance(row, dict):
                    raise OptionError(f"line {number}: {shorten(repr(row), 100)} is no row, a mapping of columns")
                yield row


def _source(arguments: FinetuneArguments) -> str:
    name = "dataset_name" if arguments.train_file is None else "train_file"
    return f"{name}={getattr(arguments, name)}"


def conversation(row: Mapping[str, Any]) -> tuple[list[Message], str | None]:
    """The messages before the answer, and the answer, None where the row has none.

    Raises OptionError for columns that are none of `COLUMNS` and for values that are no text.
    """
    if "messages" in row:
        messages = _messages(row["messages"] or [])
        if not messages or messages[-1]["role"] != "assistant":
            return messages, None
        before, answer = messages[:-1], _text(messages[-1], "content")
    else:
        if "response" in row and ("question" in row or "prompt" in row):
            user, answer = _text(row, "question") or _text(row, "prompt"), _text(row, "response")
            system = _text(row, "system_prompt")
        elif "instruction" in row and "output" in row:
            user = TURN_SEPARATOR.join(part for part in (_text(row, "instruction"), _text(row, "input")) if part)
            system, answer = "", _text(row, "output")
        else:
            raise OptionError(f"the data has the columns {', '.join(row)}; allowed are {COLUMNS}")
        before = [{"role": "system", "content": system}] if system else []
        before.append({"role": "user", "content": user})
    return before, answer if answer.strip() else None


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise OptionError(f"messages={shorten(repr(value), 100)} is not allowed; allowed is a list of messages")
    for index, message in enumerate(value):
        # The last one may be an answer that is missing.
        required = ("role",) if index == len(value) - 1 else ("role", "content")
        for name in required:
            if not isinstance(message.get(name), str):
                raise OptionError(
                    f"message {index} has {name}={shorten(repr(message.get(name)), 100)}; allowed are messages of "
                    "role and content, both text"
                )
    return value


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{name}={shorten(repr(value), 100)} is not allowed; allowed is text")
    return value or ""


def instruction_examples(
    arguments: FinetuneArguments, objective: Objective, tokenizer: PreTrainedTokenizerBase, *, report: bool = False
) -> tuple[list[Example], str]:
    """The first rows that have an answer and leave room for a mask, and a sentence on what was skipped.

    The answer of a base model ends in EOS, that of an instruct model (`apply_chat_template`) in whatever its template
    ends an assistant's message with; both belong to the answer, as in LLaDA's own fine-tuning. `report` shows progress.
    Raises OptionError for rows that are malformed, and where nothing remains.
    """
    if arguments.apply_chat_template and not tokenizer.chat_template:
        raise OptionError(
            f"apply_chat_template=True: the tokenizer of {arguments.model_name_or_path} has no chat template"
        )
    special_tokens = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    longest_text = arguments.max_length * max(map(len, tokenizer.get_vocab()))  # characters; more are surely too long
    tokenize: Callable[..., tuple[list[int], list[int]]] = (
        _templated if arguments.apply_chat_template else partial(_plain, n_closing=len(closing_ids(tokenizer)))
    )
    examples: list[Example] = []
    skipped: Counter[str] = Counter()
    too_long = f"longer than {arguments.max_length} tokens"
    progress = tqdm(total=arguments.usable_samples, desc="reading the data", unit=" examples", disable=not report)
    for number, row in stored_rows(arguments):
        try:
            messages, answer = conversation(row)
            if answer is None:
                skipped["without an answer"] += 1
                continue
            texts = [message["content"] for message in messages]
            if objective.masked_part == "prompt" and not any(text.strip() for text in texts):
                skipped["without a prompt"] += 1
                continue
            # The tokenizer would read such text as the token itself, which may be the mask.
            if any(token in text for text in (*texts, answer) for token in special_tokens):
                skipped["with a special token's name in their text"] += 1
                continue
            written = "".join((*texts, answer))
            written.encode()  # no tokenizer takes halves of characters, which JSON can hold
            if len(written) > longest_text:
                skipped[too_long] += 1
                continue
            prompt_ids, answer_ids = tokenize(messages, answer, tokenizer)
        except (OptionError, UnicodeEncodeError) as error:
            raise OptionError(f"{_source(arguments)}, row {number} counted from 0: {error}") from error
        if len(prompt_ids) + len(answer_ids) >= arguments.max_length:
            skipped[too_long] += 1
            continue
        examples.append(Example(number, prompt_ids, answer_ids))
        progress.update()
        if len(examples) == arguments.usable_samples:
            break
    progress.close()
    sentence = "rows skipped: " + (", ".join(f"{count} {why}" for why, count in skipped.items()) or "none")
    if not examples:
        raise OptionError(f"{_source(arguments)} holds no example to train on; {sentence}")
    return examples, f"{len(examples)} examples; {sentence}"


def _plain(
    messages: list[Message], answer: str, tokenizer: PreTrainedTokenizerBase, n_closing: int
) -> tuple[list[int], list[int]]:
    """`n_closing`: tokens that the tokenizer puts behind a text, where the answer goes on instead, as in lm_eval."""
    prompt = "".join(message["content"] + TURN_SEPARATOR for message in messages)
    answer_ids: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
    prompt_ids: list[int] = tokenizer(prompt)["input_ids"]
    return prompt_ids[: len(prompt_ids) - n_closing], [*answer_ids, tokenizer.eos_token_id]


def _templated(messages: list[Message], answer: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    try:
        before = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], tokenize=False)
    except (TemplateError, ValueError) as error:  # as of a conversation without a prompt
        raise OptionError(f"apply_chat_template=True: this model's template refuses the messages: {error}") from error
    if not whole.startswith(before):
        raise OptionError(
            "apply_chat_template=True: this model's template renders a prompt differently once it is answered, "
            "so that the answer cannot be told from the prompt"
        )
    prompt_ids: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    answer_ids: list[int] = tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]
    # What follows the end of the turn is no answer: a line break, or LLaDA's header of a next message.
    ends = end_of_turn_ids(tokenizer) | {tokenizer.eos_token_id}
    end = next((index for index, id in enumerate(answer_ids) if id in ends), len(answer_ids))
    return prompt_ids, answer_ids[: end + 1]
