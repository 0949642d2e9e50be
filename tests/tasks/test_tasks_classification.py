"""Multi-dimensional classification: its points, prompts, example orders and settings."""

import hashlib
import json
import math
import re
from collections import Counter

import pytest
from lm_eval.tasks._yaml_loader import _import_func_in_yml, load_yaml

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from tests.conftest import evaluate, load_task, requests_of, suite

FOLDER = tasks_path() / "classification"
DATA_SETS = ("nonlinear", "swiss_roll", "moons", "circles")
ORDERS = ("random", "nearest_first", "nearest_last")
SEEDS = (1, 2, 3, 4, 5)
PROMPTS_SHA256 = "7883e7bc9791f2bc67a3e5995b9c22af9ffd652b260a924b90dad2f52448808f"

draw_points = _import_func_in_yml("points.draw_points", FOLDER)


def prompts(name: str, limit: int, num_fewshot: int | None = None) -> list[str]:
    return [text for text, _ in requests_of(load_task(name), limit, num_fewshot)]


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
        for text in prompts(f"mdlm_classification_{data_set}_nearest_last", limit=100):
            digest.update(text.encode() + b"\0")
    assert digest.hexdigest() == PROMPTS_SHA256


def test_orders_hold_the_same_examples() -> None:
    by_order = {order: prompts(f"mdlm_classification_moons_{order}", limit=10) for order in ORDERS}
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
    (few,) = prompts("mdlm_classification_swiss_roll_random", limit=1, num_fewshot=4)
    (many,) = prompts("mdlm_classification_swiss_roll_random", limit=1, num_fewshot=100)
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
