"""Recipes and the data that they name."""

import json
from itertools import islice
from pathlib import Path

import pytest

from mdlm_finetune.data import generated_texts, prompt_and_answer, stored_texts, tokenized
from mdlm_finetune.options import read_recipe
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer


def test_recipe_and_changes(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output: out\nlearning_rate: 1e-5\nweighting: none\n")
    options = read_recipe(recipe, ["beta=10"])
    assert (options.learning_rate, options.beta, options.weighting) == (1e-5, 10.0, "none")
    for change, message in (
        ("betta=1", "did you mean beta"),
        ("p_low=0.9", "p_low=0.9"),
        ("steps=0", "steps=0"),
        ("divergence=js", "allowed are tv, kl, none"),
    ):
        with pytest.raises(OptionError, match=message):
            read_recipe(recipe, [change])


def test_columns() -> None:
    assert prompt_and_answer({"prompt": "p", "response": "a"}, 0) == ("p", "a")
    assert prompt_and_answer({"system_prompt": "s", "question": "q", "response": "a"}, 0) == ("s\nq", "a")
    assert prompt_and_answer({"instruction": "i", "input": "", "output": "a"}, 0) == ("i", "a")
    assert prompt_and_answer({"messages": [{"content": "q"}, {"content": "a"}]}, 0) == ("q", "a")
    with pytest.raises(OptionError, match="row 3 of the data has no answer"):
        prompt_and_answer({"prompt": "p", "response": ""}, 3)


def test_a_jsonl_file_is_read_and_long_rows_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": "x" * n, "response": "yes"}) + "\n" for n in (5, 100)))
    examples, skipped = tokenized(stored_texts(str(path), 0), tiny_tokenizer(), n_examples=10, max_length=50)
    assert ([len(example.prompt_ids) for example in examples], skipped) == ([5], 1)
    with pytest.raises(OptionError, match="no example of fewer than 4 tokens"):
        tokenized(stored_texts(str(path), 0), tiny_tokenizer(), n_examples=10, max_length=4)


def test_generated_data_repeats_by_seed_and_holds_no_distractors() -> None:
    texts = list(islice(generated_texts(1), 20))
    assert texts == list(islice(generated_texts(1), 20))
    assert all(prompt.startswith("Rule: ") or prompt.endswith(" is: ") for prompt, _ in texts)
    assert all(answer for _, answer in texts)
