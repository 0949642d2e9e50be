"""Recipes and the data that they name."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pandas
import pytest
from tokenizers.processors import TemplateProcessing

from mdlm_finetune.arguments import FinetuneArguments, read_arguments
from mdlm_finetune.generated import generated_examples, number_questions
from mdlm_finetune.instructions import conversation, instruction_examples
from mdlm_finetune.objective import Objective
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_finetune.recipe import RENAMED, packaged
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

QUESTION = [{"role": "user", "content": "q"}]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def on(data: Path, **settings: Any) -> FinetuneArguments:
    """Arguments that train on a file or a folder of the hub's form."""
    where = {"dataset_name": str(data)} if data.is_dir() else {"train_file": str(data)}
    return FinetuneArguments(**{"output_dir": "out", "max_length": 50} | where | settings)


def read(path: Path, objective: Objective | None = None, **settings: Any) -> tuple[list[tuple[str, str]], str]:
    """Prompts and answers of a file as text, and what was skipped."""
    tokenizer = tiny_tokenizer()
    examples, sentence = instruction_examples(on(path, **settings), objective or MaskAgnostic(), tokenizer)
    return [(tokenizer.decode(e.prompt_ids), tokenizer.decode(e.answer_ids)) for e in examples], sentence


def test_recipe_and_flags(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "output_dir: out\ndataset_name: org/data\nlearning_rate: 1e-5\nweighting: none\n"
        "lora_target_modules: [q_proj, v_proj]\nlr_scheduler_kwargs: {num_cycles: 2}\n"
    )
    flags = ["--beta", "10", "--logging-steps=3", "--train_file=mine.jsonl", "--resume"]
    arguments, objective, actions = read_arguments([f"--config={recipe}", *flags])
    assert (arguments.learning_rate, arguments.logging_steps, arguments.folder) == (1e-5, 3, Path("out"))
    assert (arguments.train_file, arguments.dataset_name) == ("mine.jsonl", None)
    assert arguments.lora_target_modules == ["q_proj", "v_proj"]
    assert arguments.lr_scheduler_kwargs == {"num_cycles": 2}
    assert objective == MaskAgnostic(beta=10.0, weighting="none")
    assert (actions.resume, actions.overwrite) == (True, False)
    (recipe.parent / "again.yaml").write_text(json.dumps(arguments.changed()))
    again = read_arguments([f"--config={tmp_path / 'again.yaml'}", "--output_dir=elsewhere"])[0]
    assert again.changed() == arguments.changed()


@pytest.mark.parametrize("flag", ["--train_file=mine.jsonl", "--train-file=mine.jsonl"])
def test_a_flag_replaces_the_recipes_data(flag: str) -> None:
    arguments, *_ = read_arguments(["--config=built-in-ce", flag])
    assert (arguments.train_file, arguments.dataset_name) == ("mine.jsonl", None)


def test_what_was_renamed_says_so(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    for name, now in RENAMED.items():
        recipe.write_text(f"{name}: 1\n")
        for words in ([f"--config={recipe}"], ["--config=built-in-ce", f"--{name}", "a=1"]):
            with pytest.raises(OptionError, match=f"{name} is now {re.escape(now)}"):
                read_arguments(words)


def test_all_recipes_parse() -> None:
    for name in packaged():
        arguments, objective, _ = read_arguments([f"--config={name}"])
        assert arguments.apply_chat_template == ("instruct" in name), name
        assert arguments.output_dir == f"out/{name}"
        label = "SFT" if name.endswith("sft") else "MA (CE only)" if name.endswith("ce") else "MA (CE + TV)"
        assert objective.label == label
    assert len(packaged()) >= 8


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


def test_a_closing_token_is_no_part_of_the_prompt(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|pad|> $A <|eos|>", special_tokens=[("<|pad|>", 0), ("<|eos|>", 1)]
    )
    path = write_rows(tmp_path / "data.jsonl", [{"prompt": "q", "response": "a"}])
    (example,), _ = instruction_examples(on(path), MaskAgnostic(), tokenizer)
    assert tokenizer.decode(example.prompt_ids) == "<|pad|>q\n\n"
    assert tokenizer.decode(example.answer_ids) == "a<|eos|>"


def test_a_template_needs_a_prompt(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"messages": [{"role": "assistant", "content": "a"}]}])
    with pytest.raises(
        OptionError, match=r"row 0 counted from 0: .*this model's template refuses the messages: Cannot"
    ):
        read(path, apply_chat_template=True)


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
    texts, sentence = read(path, MaskAgnostic(masked_part="prompt"))
    assert texts == [("xxxxx\n\n", "yes<|eos|>")]
    assert "1 without a prompt" in sentence
    with pytest.raises(OptionError, match=r"no example to train on; rows skipped: .*longer than 4 tokens"):
        read(path, max_length=4)


def test_an_example_leaves_room_for_a_mask(tmp_path: Path) -> None:
    """A token a character, beside two that separate the turns and one that ends the answer."""
    path = write_rows(tmp_path / "data.jsonl", [{"prompt": "x" * n, "response": "yes"} for n in (43, 44)])
    texts, sentence = read(path, max_length=50)
    assert [len(prompt) for prompt, _ in texts] == [43 + 2]
    assert "1 longer than 50 tokens" in sentence


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
    examples, _ = instruction_examples(on(path, seed=1), MaskAgnostic(), tiny_tokenizer())
    assert [example.id for example in examples] != sorted(example.id for example in examples)
    assert [tiny_tokenizer().decode(e.prompt_ids) for e in examples] == [f"{e.id}\n\n" for e in examples]


def test_a_configuration_of_a_data_set(tmp_path: Path) -> None:
    configs = "".join(f"- {{config_name: {name}, data_files: {name}.jsonl}}\n" for name in "ab")
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for name in "ab":
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": "q", "response": name}])
    assert read(tmp_path, dataset_config="b")[0] == [("q\n\n", "b<|eos|>")]
    with pytest.raises(OptionError, match="cannot be read: Config name is missing"):
        read(tmp_path)


def test_an_empty_or_absent_file_is_refused(tmp_path: Path) -> None:
    for path in (write_rows(tmp_path / "empty.jsonl", []), tmp_path / "absent.jsonl"):
        with pytest.raises(OptionError, match=str(path)):
            read(path)


def test_the_seed_fixes_which_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"prompt": str(n), "response": "a"} for n in range(50)])
    first, again, other = (read(path, max_train_samples=10, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert len(first) == 10
    assert first != other


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pandas.DataFrame([{"instruction": "i", "input": "", "output": "o"}]).to_parquet(path)
    assert read(path)[0] == [("i\n\n", "o<|eos|>")]


def test_chat_template_splits_prompt_from_answer(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"system_prompt": "s", "question": "q", "response": "yes"}])
    assert read(path, apply_chat_template=True)[0] == [("<system>s<user>q<assistant>", "yes")]
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    arguments = on(path, model_name_or_path="some/model", apply_chat_template=True)
    with pytest.raises(OptionError, match="some/model has no chat template"):
        instruction_examples(arguments, MaskAgnostic(), tokenizer)


def test_a_templated_answer_ends_with_its_turn(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"system_prompt": "s", "question": "q", "response": "yes"}])
    arguments = on(path, apply_chat_template=True)
    tokenizer = tiny_tokenizer()
    # As LLaDA-8B-Instruct's, which begins an answer whether or not that is asked for.
    turns = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}<|eos|>{% endfor %}<assistant>"
    tokenizer.chat_template = turns
    (example,), _ = instruction_examples(arguments, MaskAgnostic(), tokenizer)
    assert tokenizer.decode(example.prompt_ids) == "<system>s<|eos|><user>q<|eos|><assistant>"
    assert tokenizer.decode(example.answer_ids) == "yes<|eos|>"
    tokenizer.chat_template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    with pytest.raises(OptionError, match=r"row 0 .*template refuses the messages: no system"):
        instruction_examples(arguments, MaskAgnostic(), tokenizer)


def test_generated_data_repeats_by_seed_and_asks_for_numbers() -> None:
    texts = list(islice(number_questions(1), 50))
    assert texts == list(islice(number_questions(1), 50)) != list(islice(number_questions(2), 50))
    for prompt, answer in texts:
        assert prompt.endswith("Answer:[")
        assert answer in ("A].", "B].", "C].")
        options = re.findall(r"\([ABC]\) (\w+)", prompt)
        assert all(option.isdigit() for option in options)
        assert 15 <= len(options) / 3 <= 50
    with pytest.raises(OptionError, match="max_length=4 is too short for number_questions"):
        generated_examples(
            FinetuneArguments(output_dir="out", dataset_name="number_questions", max_length=4), tiny_tokenizer()
        )
