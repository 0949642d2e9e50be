"""Recipes and the data that they name."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pandas
import pytest

from mdlm_finetune.generated import HELD_OUT_RULES, generated_examples, generated_texts
from mdlm_finetune.instructions import conversation, instruction_examples
from mdlm_finetune.options import FinetuneOptions, read_recipe, training_arguments
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

QUESTION = [{"role": "user", "content": "q"}]
RECIPES = Path(__file__).parents[1] / "finetune" / "recipes"


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **settings: Any) -> tuple[list[tuple[str, str]], str]:
    """Prompts and answers of a file as text, and what was skipped."""
    tokenizer = tiny_tokenizer()
    options = FinetuneOptions(**{"output": "out", "data": str(path), "max_length": 50} | settings)
    examples, sentence = instruction_examples(options, tokenizer)
    return [(tokenizer.decode(e.prompt_ids), tokenizer.decode(e.answer_ids)) for e in examples], sentence


def test_recipe_and_changes(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output: out\nlearning_rate: 1e-5\nweighting: none\n")
    options = read_recipe(recipe, ["beta=10", "trainer.logging_steps=3"])
    assert (options.learning_rate, options.beta, options.weighting) == (1e-5, 10.0, "none")
    assert training_arguments(options, tmp_path).logging_steps == 3
    for change, message in (
        ("betta=1", "unknown key betta=1; did you mean beta"),
        ("p_low=0.9", "p_low=0.9, p_high=0.8"),
        ("steps=0", "steps=0"),
        ("steps=1.5", "steps=1.5 is not allowed; allowed is a whole number"),
        ("chat_template=maybe", "allowed is true or false"),
        ("divergence=js", "allowed are tv, kl, none"),
        ("masked_part=all", "allowed are answer, prompt, both"),
        ("masks_end=0", "masks_start <= masks_end"),
        ("beta", "--set beta: must be key=value"),
        ("trainer=3", "a mapping of TrainingArguments"),
        ("output=", "output is not set"),
        ("lora_targets=[1]", "allowed is a text or a list of texts"),
        ("lora_targets=*_proj", r"--set lora_targets=\*_proj: the value is no YAML"),
        ("seed=5000000000", "whole numbers below 2"),
        ("alpha=nan", "alpha=nan is not allowed"),
    ):
        with pytest.raises(OptionError, match=message):
            read_recipe(recipe, [change])
    with pytest.raises(OptionError, match=r"alpha=0.0, beta=0.0"):
        read_recipe(recipe, ["alpha=0", "beta=0"])
    recipe.write_text("output: out\ntrainer:\n")
    assert read_recipe(recipe, ["trainer.logging_steps=3"]).trainer == {"logging_steps": 3}
    assert read_recipe(recipe).trainer == {}
    recipe.write_bytes(b"output: caf\xe9")
    with pytest.raises(OptionError, match=r"recipe.yaml: cannot be read"):
        read_recipe(recipe)
    with pytest.raises(OptionError, match=r"nowhere.yaml: cannot be read"):
        read_recipe(tmp_path / "nowhere.yaml")


def test_trainer_settings_are_transformers_own(tmp_path: Path) -> None:
    for settings, message in (
        ({"max_steps": 3}, "trainer.max_steps=3 is not allowed; the recipe's own keys"),
        ({"warmup_step": 3}, "unknown key trainer.warmup_step=3.* did you mean warmup_steps"),
        ({"lr_scheduler_type": "steep"}, "steep"),
    ):
        with pytest.raises(OptionError, match=message):
            training_arguments(FinetuneOptions(output="out", trainer=settings), tmp_path)


def test_all_recipes_parse() -> None:
    recipes = {path.stem: read_recipe(path) for path in RECIPES.glob("*.yaml")}
    assert len(recipes) >= 7
    assert {recipe.beta for name, recipe in recipes.items() if name.endswith("-ce")} == {0.0}
    for name, recipe in recipes.items():
        assert recipe.chat_template == ("instruct" in name), name
        assert recipe.output == f"out/{name}"


def test_columns() -> None:
    assert conversation({"prompt": "q", "response": "a"}) == (QUESTION, "a")
    with_system = [{"role": "system", "content": "s"}, *QUESTION]
    assert conversation({"system_prompt": "s", "question": "q", "response": "a"}) == (with_system, "a")
    assert conversation({"instruction": "q", "input": "", "output": "a"}) == (QUESTION, "a")
    assert conversation({"instruction": "q", "input": "i", "output": "a"})[0][0]["content"] == "q\n\ni"
    assert conversation({"messages": [*QUESTION, {"role": "assistant", "content": "a"}]}) == (QUESTION, "a")
    assert conversation({"messages": QUESTION})[1] is None
    assert conversation({"prompt": "q", "response": ""})[1] is None
    with pytest.raises(OptionError, match="the data has the columns text, label; allowed are messages; prompt, resp"):
        conversation({"text": "t", "label": 0})


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    rows = [
        *({"prompt": "x" * n, "response": "yes" if n else ""} for n in (5, 100, 0)),
        {"prompt": "blank", "response": " \n"},
        {"prompt": "a <|mask|>", "response": "b"},
        {"prompt": "a", "response": "b <|eos|>"},
        {"prompt": " ", "response": "c"},
    ]
    path = write_rows(tmp_path / "data.jsonl", rows)
    texts, sentence = read(path)
    assert sorted(texts) == [(" \n\n", "c<|eos|>"), ("xxxxx\n\n", "yes<|eos|>")]
    assert sentence.startswith("2 examples; rows skipped: ")
    for skipped in ("2 without an answer", "2 with a special token's name in their text", "1 longer than 50 tokens"):
        assert skipped in sentence
    texts, sentence = read(path, masked_part="prompt")
    assert texts == [("xxxxx\n\n", "yes<|eos|>")]
    assert "1 without a prompt" in sentence
    with pytest.raises(OptionError, match=r"no example to train on; rows skipped: .*longer than 4 tokens"):
        read(path, max_length=4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q", "response": 4}, "response=4 is not allowed; allowed is text"),
        ({"prompt": 3, "response": "a"}, "prompt=3 is not allowed"),
        ({"messages": "hello"}, "messages='hello' is not allowed; allowed is a list"),
        ({"messages": [{"from": "user"}]}, "message 0 has role=None"),
        ({"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "a"}]}, "content=None"),
        ({"messages": [{"role": "user", "content": [{"text": "q"}]}, {"role": "assistant"}]}, r"content=\[\{'text'"),
    ],
)
def test_malformed_rows_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=rf"data\.jsonl, row 0 counted from 0: .*{message}"):
        read(write_rows(tmp_path / "data.jsonl", [row]))


def test_an_example_names_its_row(tmp_path: Path) -> None:
    rows = [{"prompt": str(n), "response": "a" if n % 2 else ""} for n in range(20)]
    path = write_rows(tmp_path / "data.jsonl", rows)
    examples, _ = instruction_examples(FinetuneOptions(output="out", data=str(path), seed=1), tiny_tokenizer())
    assert [example.id for example in examples] != sorted(example.id for example in examples)
    assert [tiny_tokenizer().decode(e.prompt_ids) for e in examples] == [f"{e.id}\n\n" for e in examples]


def test_a_configuration_of_a_data_set(tmp_path: Path) -> None:
    configs = "".join(f"- {{config_name: {name}, data_files: {name}.jsonl}}\n" for name in "ab")
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for name in "ab":
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": "q", "response": name}])
    assert read(tmp_path, data_config="b")[0] == [("q\n\n", "b<|eos|>")]
    with pytest.raises(OptionError, match="cannot be read: Config name is missing"):
        read(tmp_path)


def test_an_empty_or_absent_file_is_refused(tmp_path: Path) -> None:
    for path in (write_rows(tmp_path / "empty.jsonl", []), tmp_path / "absent.jsonl"):
        with pytest.raises(OptionError, match=str(path)):
            read(path)


def test_the_seed_fixes_which_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"prompt": str(n), "response": "a"} for n in range(50)])
    first, again, other = (read(path, n_examples=10, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert len(first) == 10
    assert first != other


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pandas.DataFrame([{"instruction": "i", "input": "", "output": "o"}]).to_parquet(path)
    assert read(path)[0] == [("i\n\n", "o<|eos|>")]


def test_chat_template_splits_prompt_from_answer(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"system_prompt": "s", "question": "q", "response": "yes"}])
    assert read(path, chat_template=True)[0] == [("<system>s<user>q<assistant>", "yes")]
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    options = FinetuneOptions(output="out", pretrained="some/model", data=str(path), chat_template=True)
    with pytest.raises(OptionError, match="some/model has no chat template"):
        instruction_examples(options, tokenizer)


def test_a_templated_answer_ends_with_its_turn(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"system_prompt": "s", "question": "q", "response": "yes"}])
    options = FinetuneOptions(output="out", data=str(path), chat_template=True)
    tokenizer = tiny_tokenizer()
    # As LLaDA-8B-Instruct's, which begins an answer whether or not that is asked for.
    turns = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}<|eos|>{% endfor %}<assistant>"
    tokenizer.chat_template = turns
    (example,), _ = instruction_examples(options, tokenizer)
    assert tokenizer.decode(example.prompt_ids) == "<system>s<|eos|><user>q<|eos|><assistant>"
    assert tokenizer.decode(example.answer_ids) == "yes<|eos|>"
    tokenizer.chat_template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    with pytest.raises(OptionError, match=r"row 0 .*template refuses the messages: no system"):
        instruction_examples(options, tokenizer)


def test_generated_data_repeats_by_seed_and_names_its_rules() -> None:
    texts = list(islice(generated_texts(1), 200))
    assert texts == list(islice(generated_texts(1), 200))
    assert all(prompt.startswith("Rule: ") or prompt.endswith(" is: ") for prompt, _ in texts)
    assert all(answer for _, answer in texts)
    rules = {prompt.split()[1] for prompt, _ in texts if prompt.startswith("Rule: ")}
    assert len(rules) > 8
    assert not rules & set(HELD_OUT_RULES)
    with pytest.raises(OptionError, match="max_length=4 is too short for the generated data"):
        generated_examples(FinetuneOptions(output="out", max_length=4), tiny_tokenizer())
