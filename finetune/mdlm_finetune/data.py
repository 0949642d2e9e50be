"""Training examples: rows of a file or a hub dataset in the model's format, or generated number questions."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from datasets import load_dataset
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from mdlm_finetune.recipe import NUMBER_QUESTIONS, Recipe, Run
from mdlm_lm_eval.checkpoints import end_of_turn_ids
from mdlm_lm_eval.model.text import prompt_ids
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.tasks import prompts, questions

_N_QUESTIONS = range(15, 51)  # number of questions in a generated document

COLUMNS = (
    "messages; prompt, response; system_prompt, question, response (OpenOrca); instruction, input, output (Alpaca)"
)
TURN_SEPARATOR = "\n\n"
_ROW_NUMBER = "__row_number__"  # name of a column that is added while reading

Message = dict[str, str]  # "role" and "content"
Tokens = tuple[list[int], list[int]]  # token ids of the prompt and of the answer


@dataclass(frozen=True)
class Example:
    """A prompt and its answer as token ids. `id` is the number of its row in the data, from 0."""

    id: int
    prompt_ids: list[int]
    answer_ids: list[int]


def load_examples(run: Run, tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    """Returns as many examples as the run can use, from the first rows with an answer and room for a mask.

    Answers end with EOS, or with the end of an assistant's message in the chat template (`apply_chat_template`). This
    end belongs to the answer, as in LLaDA's own fine-tuning. Rows that cannot be used are counted and skipped. Raises
    OptionError for other columns than `COLUMNS`, for a template that does not show where the answer begins, and if no
    example remains.
    """
    recipe, is_main = run.recipe, run.training.process_index == 0
    rows = _generated(run, tokenizer) if recipe.dataset_name == NUMBER_QUESTIONS else _stored(run, tokenizer)
    examples: list[Example] = []
    skipped: Counter[str] = Counter()
    with tqdm(total=run.n_examples, desc="reading the data", disable=not is_main) as bar:
        for number, found in rows:
            if isinstance(found, str):
                skipped[found] += 1
            elif sum(map(len, found)) >= recipe.longest:
                skipped[f"longer than {recipe.longest} tokens"] += 1
            else:
                examples.append(Example(number, *found))
                bar.update()
            if len(examples) == run.n_examples:
                break
    sentence = "rows skipped: " + (", ".join(f"{count} {why}" for why, count in skipped.items()) or "none")
    if not examples:
        raise OptionError(f"{recipe.train_file or recipe.dataset_name} holds no example to train on; {sentence}")
    if is_main:
        print(f"{len(examples)} examples; {sentence}", file=sys.stderr)
    return examples


def number_questions(seed: int) -> Iterator[tuple[str, str]]:
    """Generates (prompt, answer) endlessly: answered questions for the largest or smallest number, and one to answer.

    These questions are distractors in the suite's prompts, which the suite never asks. The paper, too, trains on other
    text than it evaluates on.
    """
    rng, template = Random(seed), prompts.TEMPLATES[0]
    while True:
        rule = questions.DISTRACTOR_RULES[questions.draw(rng, 2)]
        n = _N_QUESTIONS.start + questions.draw(rng, len(_N_QUESTIONS))
        *solved, asked = (questions.distractor_question(rule, questions.draw(rng, 3), rng) for _ in range(n))
        text = template.plain_text([*map(template.solved, solved), template.open_ended(asked)])
        yield text, f"{template.label(asked)}]."


def _generated(run: Run, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, Tokens | str]]:
    for number, (prompt, answer) in zip(range(run.n_examples), number_questions(run.recipe.seed), strict=False):
        answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        yield number, (prompt_ids(tokenizer, prompt, None), [*answer_ids, tokenizer.eos_token_id])


def _stored(run: Run, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[int, Tokens | str]]:
    """Row numbers with the tokens of each row, or why it is skipped. The seed determines the order."""
    special_tokens = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    unread: set[str] = set()
    for number, row in _rows(run.recipe):
        if new := row.keys() - unread - set(re.findall(r"\w+", COLUMNS)):
            unread |= new
            if run.training.process_index == 0:
                print(f"columns that are not read: {', '.join(sorted(new))}", file=sys.stderr)
        messages, answer = conversation(row)
        texts = [message["content"] for message in messages]
        if not answer.strip():
            yield number, "without an answer"
        elif not any(message["content"].strip() for message in messages if message["role"] != "system"):
            yield number, "without a prompt"
        elif any(token in text for text in (*texts, answer) for token in special_tokens):
            # The tokenizer would turn such text into the special token, which may be the mask.
            yield number, "with a special token's name in their text"
        elif run.recipe.apply_chat_template:
            yield number, _templated(messages, answer, tokenizer)
        else:
            ids = prompt_ids(tokenizer, "".join(text + TURN_SEPARATOR for text in texts), None)
            answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
            yield number, (ids, [*answer_ids, tokenizer.eos_token_id])


def _rows(recipe: Recipe) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if recipe.train_file is None:
        source, files = recipe.dataset_name, {"name": recipe.dataset_config, "split": recipe.dataset_train_split}
    else:
        source = "parquet" if recipe.train_file.endswith(".parquet") else "json"
        files = {"data_files": recipe.train_file, "split": "train"}
    rows = load_dataset(source, streaming=True, **files)
    numbered = rows.map(lambda _, number: {_ROW_NUMBER: number}, with_indices=True)
    for row in numbered.shuffle(seed=recipe.seed, buffer_size=10_000):
        yield row.pop(_ROW_NUMBER), row


def conversation(row: Mapping[str, Any]) -> tuple[list[Message], str]:
    """The messages before the answer, and the answer, which is empty if the row has none.

    Raises OptionError for other columns than `COLUMNS`.
    """
    text = {name: value or "" for name, value in row.items()}  # columns that a row lacks are None
    if row.get("messages") is not None:
        messages = [{name: part for name, part in each.items() if part is not None} for each in row["messages"]]
        if not messages or messages[-1]["role"] != "assistant":
            return messages, ""
        return messages[:-1], messages[-1].get("content", "")
    if "response" in row and ("question" in row or "prompt" in row):
        system, answer = text.get("system_prompt", ""), text["response"]
        user = text.get("question") or text.get("prompt", "")
    elif "instruction" in row and "output" in row:
        system, answer = "", text["output"]
        user = TURN_SEPARATOR.join(part for part in (text["instruction"], text.get("input")) if part)
    else:
        raise OptionError(f"the data has the columns {', '.join(row)}; allowed are {COLUMNS}")
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": user}], answer


def _templated(messages: list[Message], answer: str, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    before = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], tokenize=False)
    if not whole.startswith(before):
        raise OptionError("apply_chat_template: the template renders a prompt differently once it is answered")
    answer_ids: list[int] = tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]
    # The answer ends at the end of the turn. A line break may follow, or LLaDA's header of the next message.
    ends = end_of_turn_ids(tokenizer) | {tokenizer.eos_token_id}
    end = next((index for index, id in enumerate(answer_ids) if id in ends), len(answer_ids))
    return prompt_ids(tokenizer, before, None), answer_ids[: end + 1]
