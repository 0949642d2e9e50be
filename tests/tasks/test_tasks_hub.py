"""Tasks whose data come from the hub, on small local data of the same schema: single-token tasks and HotpotQA."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from tests.conftest import data, requests_of
from tests.support.local_tasks import local_task

Rows = list[dict[str, Any]]

HOTPOTQA = tasks_path() / "hotpotqa/mdlm_hotpotqa.yaml"
# Of each task the splits of examples and questions, the columns, a question, and whether long texts are left out.
SINGLE_TOKEN = data("cases.json")["single-token tasks"]


def rows_of(name: str, n: int, n_labels: int, start: int = 0) -> Rows:
    columns = SINGLE_TOKEN[name]["columns"]
    return [
        {column: f" {column} number {n} " for column in columns} | {"label": n % n_labels, "idx": n}
        for n in range(start, start + n)
    ]


def single_token_yaml(folder: Path, name: str, examples: Rows, questions: Rows) -> str:
    splits = dict(zip(SINGLE_TOKEN[name]["splits"], (examples, questions), strict=True))
    return local_task(folder, tasks_path() / f"single_token/mdlm_{name}.yaml", splits)


def load(config: str) -> Any:
    (task,) = TaskManager(include_defaults=False).load([config])["tasks"].values()
    return task


def prompts(task: Any, num_fewshot: int | None = None, chat: bool = False) -> list[str]:
    return [text for text, _ in requests_of(task, 10, num_fewshot, chat)]


@pytest.mark.parametrize("name", SINGLE_TOKEN)
def test_single_token_prompt_character_for_character(tmp_path: Path, name: str) -> None:
    columns, form = SINGLE_TOKEN[name]["columns"], SINGLE_TOKEN[name]["asked"]
    n_labels = 4 if name == "agnews" else 2
    examples = rows_of(name, 40, n_labels)
    question = rows_of(name, 1, 1, start=99)
    task = load(single_token_yaml(tmp_path, name, examples, question))
    (prompt,) = prompts(task, num_fewshot=2)
    solved = []
    for example in task.sampler.df[:2]:
        texts = [example[column].strip() for column in columns]
        solved.append(form.format(*texts) + "ABC"[example["label"]] + "].\n\n")
    assert prompt == "".join(solved) + form.format(*(f"{column} number 99" for column in columns))
    assert task.instances[0].args[1] == {"max_gen_toks": 1, "until": []}
    assert task.doc_to_target(task.eval_docs[0]) == "A"
    assert len(prompts(task)) == 1


def test_single_token_chat_has_messages_with_a_prefilled_answer(tmp_path: Path) -> None:
    config = single_token_yaml(tmp_path, "sst2", rows_of("sst2", 10, 2), rows_of("sst2", 1, 1))
    (plain,) = prompts(load(config), num_fewshot=1)
    (chat,) = prompts(load(config), num_fewshot=1, chat=True)
    assert chat == "<user>" + plain.replace("\n\n", "<user>").replace("\nAnswer", "<assistant>Answer")


@pytest.mark.parametrize("name", SINGLE_TOKEN)
def test_single_token_rows_are_filtered_balanced_and_ordered(tmp_path: Path, name: str) -> None:
    columns = SINGLE_TOKEN[name]["columns"]
    n_labels = 3 if name == "agnews" else 2
    rows = [
        *rows_of(name, 400, n_labels),
        *rows_of(name, 1100, 1, start=400),  # all A: the examples are balanced nevertheless
        *({column: "x" * (502 // len(columns)) for column in columns} | {"label": 1, "idx": n} for n in range(20)),
        *(dict.fromkeys(columns, "no letter") | {"label": label, "idx": 0} for label in (-1, 3)),
    ]
    task = load(single_token_yaml(tmp_path, name, rows, rows))
    examples, questions = task.sampler.df, list(task.eval_docs)
    assert (len(examples), len(questions)) == (100, 1000)
    for n in (5, 25, 100):
        counts = Counter(example["label"] for example in examples[:n])
        assert set(counts) == set(range(n_labels))
        assert max(counts.values()) - min(counts.values()) <= 1
    lengths = {sum(len(row[column].strip()) for column in columns) for row in questions + examples}
    assert (max(lengths) <= 500) == SINGLE_TOKEN[name]["is_short"]
    assert [row["idx"] for row in questions[:100]] != sorted(row["idx"] for row in questions[:100])
    again = load(single_token_yaml(tmp_path, name, rows, rows))
    assert (again.sampler.df, list(again.eval_docs)) == (examples, questions)
    fewer, more = prompts(again, num_fewshot=5)[0], prompts(again, num_fewshot=25)[0]
    assert more.startswith(fewer.rpartition("\n\n")[0])


def hotpotqa_rows(context: str = " It is here.") -> Rows:
    return [
        {
            "id": str(n),
            "question": question,
            "answer": answer,
            "type": "comparison",
            "level": "hard",
            "supporting_facts": {"title": titles, "sent_id": [0, 0]},
            "context": {"title": titles, "sentences": [[f"This is {title}.", context] for title in titles]},
        }
        for n, (question, answer, titles) in enumerate(data("cases.json")["HotpotQA"])
    ]


def test_hotpotqa_prompt_character_for_character(tmp_path: Path) -> None:
    rows = hotpotqa_rows()
    task = load(local_task(tmp_path, HOTPOTQA, {"train": rows[1:2], "validation": rows[:1]}))
    system = "Answer the question about the context with [A] or [B]."
    example = (
        "**Context**:\n'This is Eve Roe (singer). It is here.\nThis is Ann Lee. It is here.'.\n\n"
        "**Question**: 'Is Ann Lee or Eve Roe older?' [A] Ann Lee\n [B] Eve Roe"
    )
    asked = (
        "**Context**:\n'This is Ann Lee. It is here.\nThis is Eve Roe (singer). It is here.'.\n\n"
        "**Question**: 'Who was born first, Ann Lee or Eve Roe?' [A] Ann Lee\n [B] Eve Roe"
    )
    assert prompts(task) == [f"{system}\n\n{example}\n**Answer**:[A].\n\n{asked}\n**Answer**:["]
    assert task.instances[0].args[1] == {"max_gen_toks": 1, "until": []}
    assert task.doc_to_target(task.eval_docs[0]) == "B"
    (chat,) = prompts(task, chat=True)
    assert chat == f"<system>{system}\n\n<user>{example}<assistant>**Answer**:[A].<user>{asked}<assistant>**Answer**:["


def test_hotpotqa_keeps_questions_with_two_options_that_fit(tmp_path: Path) -> None:
    rows = hotpotqa_rows() + hotpotqa_rows(" word" * 400)
    task = load(local_task(tmp_path, HOTPOTQA, {"train": rows, "validation": rows}))
    assert [(doc["question"], doc["options"], doc["answer"]) for doc in task.eval_docs] == [
        ("Who was born first, Ann Lee or Eve Roe?", ["Ann Lee", "Eve Roe"], "B"),
        ("Is Ann Lee or Eve Roe older?", ["Ann Lee", "Eve Roe"], "A"),
        ("Which is longer, the Elbe or the Oder?", ["the Elbe", "the Oder"], "A"),
        ("Which city, Bonn, or Rome, Georgia, is larger?", ["Bonn", "Rome, Georgia"], "A"),
    ]
