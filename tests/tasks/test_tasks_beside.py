"""Tasks of the paper beside its suite: single-token tasks and HotpotQA, on local data, and points to classify."""

import hashlib
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import _import_func_in_yml, load_yaml

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from tests.conftest import data, evaluate, load_task, requests_of, suite
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


def prompts(task: Any, num_fewshot: int | None = None, chat: bool = False, limit: int = 10) -> list[str]:
    return [text for text, _ in requests_of(task, limit, num_fewshot, chat)]


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


# Classification of points in several dimensions


FOLDER = tasks_path() / "classification"
DATA_SETS = ("nonlinear", "swiss_roll", "moons", "circles")
ORDERS = ("random", "nearest_first", "nearest_last")
SEEDS = (1, 2, 3, 4, 5)
PROMPTS_SHA256 = "7883e7bc9791f2bc67a3e5995b9c22af9ffd652b260a924b90dad2f52448808f"

draw_points = _import_func_in_yml("points.draw_points", FOLDER)


def coordinates(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


@pytest.mark.parametrize("data_set", DATA_SETS)
def test_points_are_balanced_different_and_repeatable(data_set: str) -> None:
    drawn = {seed: draw_points(data_set, seed) for seed in SEEDS}
    for splits in drawn.values():
        train, test = splits["train"].tolist(), splits["test"].tolist()
        assert (len(train), len(test)) == (100, 1000)
        assert Counter(row[3] for row in test) == {0: 500, 1: 500}
        assert all({row[3] for row in train[n : n + 2]} == {0, 1} for n in range(0, 100, 2))
        assert len({tuple(row[:3]) for row in train + test}) == 1100
        values = {value for row in train + test for value in row[:3]}
        assert min(values) == 1
        assert max(values) == 100
        assert Counter(row[3] for row in test[:100])[0] not in (0, 100)
    assert len({json.dumps(splits["test"].tolist()) for splits in drawn.values()}) == 5
    again = draw_points.__wrapped__(data_set, 1)
    assert all((again[split] == drawn[1][split]).all() for split in again)


def test_question_character_for_character() -> None:
    task = load_task("mdlm_classification_circles_random")
    asked = {"x": 100, "y": 50, "z": 1, "label": 1, "seed": 1}
    question = "Point: (100, 50, 1)\nOptions: (A) Above, (B) Below\nAnswer:["
    assert task.fewshot_context(asked, 0, gen_prefix=task.config.gen_prefix) == question
    assert task.doc_to_target(asked) == "B"
    assert task.config.generation_kwargs == {"max_gen_toks": 1, "until": []}


def test_prompts_are_the_published_ones() -> None:
    digest = hashlib.sha256()
    for data_set in DATA_SETS:
        for text in prompts(load_task(f"mdlm_classification_{data_set}_nearest_last"), limit=100):
            digest.update(text.encode() + b"\0")
    assert digest.hexdigest() == PROMPTS_SHA256


def test_orders_hold_the_same_examples() -> None:
    by_order = {order: prompts(load_task(f"mdlm_classification_moons_{order}")) for order in ORDERS}
    for at_random, first, last in zip(*by_order.values(), strict=True):
        examples = {order: text.split("\n\n") for order, text in zip(ORDERS, (at_random, first, last), strict=True)}
        point = coordinates(examples["random"][-1])
        distances = [math.dist(point, coordinates(text)) for text in examples["nearest_first"][:-1]]
        assert len(distances) == 30
        assert distances == sorted(distances)
        assert sorted(examples["random"]) == sorted(examples["nearest_first"]) == sorted(examples["nearest_last"])
        distances = [math.dist(point, coordinates(text)) for text in examples["nearest_last"][:-1]]
        assert distances == sorted(distances, reverse=True)
        assert examples["random"] != examples["nearest_first"]
    contexts = {text.rpartition("\n\n")[0] for text in by_order["random"]}
    assert len(contexts) == 5  # one of each seed
    assert len({text.rpartition("\n\n")[0] for text in by_order["nearest_last"]}) == 10


def test_fewer_shots_are_the_beginning_of_more() -> None:
    (few,) = prompts(load_task("mdlm_classification_swiss_roll_random"), 4, limit=1)
    (many,) = prompts(load_task("mdlm_classification_swiss_roll_random"), 100, limit=1)
    assert many.startswith(few.rpartition("\n\n")[0])
    assert (few.count("Answer"), many.count("Answer")) == (5, 101)


def test_groups_hold_every_task_once_and_name_its_settings() -> None:
    top = load_yaml(FOLDER / "mdlm_classification.yaml")
    assert top["task"] == [f"mdlm_classification_{order}" for order in ORDERS]
    names = []
    for order in ORDERS:
        group = load_yaml(FOLDER / f"mdlm_classification_{order}.yaml")
        assert group["metadata"]["version"] == "1.0"
        names += group["task"]
        for data_set, name in zip(DATA_SETS, group["task"], strict=True):
            config = load_yaml(FOLDER / f"{name}.yaml")
            assert (config["metadata"]["version"], config["num_fewshot"]) == ("1.0", 30)
            assert (config["dataset_kwargs"]["data_set"], config["example_order"]) == (data_set, order)
            if order == ORDERS[DATA_SETS.index(data_set) % len(ORDERS)]:  # one of each, as points take most of the time
                task = load_task(name)
                assert len(task.eval_docs) == 5000
                assert [doc["seed"] for doc in task.eval_docs.select(range(10))] == [*SEEDS, *SEEDS]
    assert sorted(names) == sorted(name for name in suite().all_subtasks if name.startswith("mdlm_classification"))


@pytest.mark.parametrize("n", [-1, 101])
def test_wrong_shot_counts_are_refused(n: int) -> None:
    with pytest.raises(
        OptionError, match=rf"num_fewshot of .*moons_random must be a whole number from 0 up to 100, not {n}"
    ):
        load_task("mdlm_classification_moons_random").set_config("num_fewshot", n)


def test_lm_eval_has_results_of_a_group() -> None:
    settings = {"model_args": {"n_masks": 10}, "num_fewshot": 4, "limit": 2, "device": "cpu"}
    results = evaluate("mdlm", ["mdlm_classification_random"], **settings)
    task = "mdlm_classification_nonlinear_random"
    (name,) = (name for name in results["configs"] if name.rpartition("::")[2] == task)
    assert results["n-shot"][name] == 4
    assert results["config"]["mdlm"]["tasks"][task]["masks"] == [10, 10]
    recorded = {("version", "1.0"), ("data_set", "nonlinear"), ("example_order", "random")}
    assert results["configs"][name]["metadata"].items() >= recorded
    assert "mdlm_classification_random" in results["groups"]
