"""Recipes and the data that they name."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pandas
import pytest
from tokenizers.processors import TemplateProcessing

from mdlm_finetune.data import conversation, load_examples, number_questions
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from mdlm_finetune.recipe import RECIPES, read_arguments
from mdlm_lm_eval.command_line import recipes_in
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

QUESTION = [{"role": "user", "content": "q"}]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, *flags: str, tokenizer: Any = None) -> list[tuple[str, str]]:
    """Prompts and answers of a file, or of a folder of the hub's form, as text."""
    tokenizer = tokenizer or tiny_tokenizer()
    where = f"--dataset_name={path}" if path.is_dir() else f"--train_file={path}"
    run = read_arguments(["--output_dir=out", "--max_length=50", where, *flags])
    return [(tokenizer.decode(e.prompt_ids), tokenizer.decode(e.answer_ids)) for e in load_examples(run, tokenizer)]


def test_recipe_and_flags(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "output_dir: out\ndataset_name: org/data\nlearning_rate: 1e-5\nweighting: none\nseed:\n"
        "lora_target_modules: [q_proj, v_proj]\nlr_scheduler_kwargs: {num_cycles: 2}\n"
    )
    flags = ["--beta", "10", "--logging-steps=3", "--train-file=mine.jsonl", "--resume", "--weight_decay=0.5"]
    run = read_arguments([f"--config={recipe}", *flags])
    assert (run.training.learning_rate, run.training.logging_steps, run.recipe.folder) == (1e-5, 3, Path("out"))
    assert (run.recipe.train_file, run.recipe.dataset_name) == ("mine.jsonl", None)
    assert run.recipe.lora_target_modules == ["q_proj", "v_proj"]
    assert run.training.lr_scheduler_kwargs == {"num_cycles": 2}
    assert (run.training.output_dir, run.training.weight_decay) == ("out.checkpoints", 0.5)
    assert run.objective == MaskAgnostic(beta=10.0, weighting="none")
    assert (run.recipe.resume, run.recipe.overwrite) == (True, False)
    (tmp_path / "again.yaml").write_text(json.dumps(run.settings))
    assert read_arguments([f"--config={tmp_path / 'again.yaml'}"]).settings == run.settings


LABELS = {"llada-sft": "SFT (LLaDA)", "sft": "SFT", "ce": "MA (CE only)", "ce-tv": "MA (CE + TV)"}


def test_all_recipes_parse() -> None:
    for name in recipes_in(RECIPES):
        run = read_arguments([f"--config={name}"])
        assert run.recipe.apply_chat_template == ("instruct" in name), name
        assert run.recipe.output_dir == f"out/{name}"
        label = next(label for end, label in LABELS.items() if name.endswith(end))
        assert run.objective.label == label


def test_columns() -> None:
    assert conversation({"prompt": "q", "response": "a"}) == (QUESTION, "a")
    with_system = [{"role": "system", "content": "s"}, *QUESTION]
    assert conversation({"system_prompt": "s", "question": "q", "response": "a"}) == (with_system, "a")
    assert conversation({"instruction": "q", "input": "", "output": "a"}) == (QUESTION, "a")
    assert conversation({"instruction": "q", "input": "i", "output": "a"})[0][0]["content"] == "q\n\ni"
    assert conversation({"messages": [*QUESTION, {"role": "assistant", "content": "a"}]}) == (QUESTION, "a")
    assert conversation({"messages": QUESTION}) == (QUESTION, "")
    assert conversation({"prompt": "q", "response": None, "messages": None}) == (QUESTION, "")
    with pytest.raises(OptionError, match="the data has the columns text, label; allowed are messages; prompt, resp"):
        conversation({"text": "t", "label": 0})


def test_a_prompt_has_the_tokens_that_lm_eval_gives_it(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|pad|> $A <|eos|>", special_tokens=[("<|pad|>", 0), ("<|eos|>", 1)]
    )
    path = write_rows(tmp_path / "data.jsonl", [{"prompt": "q", "response": "a"}])
    assert read(path, tokenizer=tokenizer) == [("<|pad|>q\n\n", "a<|eos|>")]
    tokenizer.bos_token = "<|pad|>"  # which the template leaves to the tokenizer
    assert read(path, "--apply_chat_template", tokenizer=tokenizer) == [("<|pad|><user>q<assistant>", "a")]
    flags = ["--output_dir=out", "--dataset_name=number_questions", "--max_train_samples=1", "--max_length=4000"]
    (generated,) = load_examples(read_arguments(flags), tokenizer)
    assert tokenizer.decode(generated.prompt_ids).endswith("Answer:[")


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        # A token per character, beside two that separate the turns and one that ends the answer; one mask has room.
        *({"prompt": "x" * n, "response": "yes" if n else ""} for n in (43, 44, 0)),
        {"prompt": "blank", "response": " \n"},
        {"prompt": "a <|mask|>", "response": "b"},
        {"prompt": "a", "response": "b <|eos|>"},
        {"prompt": " ", "response": "c"},
        {"messages": QUESTION},
    ]
    path = write_rows(tmp_path / "data.jsonl", rows)
    assert read(path) == [("x" * 43 + "\n\n", "yes<|eos|>")]
    sentence = capsys.readouterr().err
    assert "1 examples; rows skipped: " in sentence
    for why in ("3 without an answer", "2 with a special token's", "1 without a prompt", "1 longer than 50 tokens"):
        assert why in sentence
    with pytest.raises(OptionError, match=r"no example to train on; rows skipped: .*longer than 4 tokens"):
        read(path, "--max_length=4")


def test_the_seed_fixes_which_rows_and_an_example_names_its_row(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "data.jsonl", [{"prompt": str(n), "response": "a" if n % 2 else ""} for n in range(50)]
    )
    run = read_arguments(["--output_dir=out", f"--train_file={path}", "--max_train_samples=10", "--seed=1"])
    examples = load_examples(run, tiny_tokenizer())
    assert [example.id for example in examples] != sorted(example.id for example in examples)
    assert [tiny_tokenizer().decode(e.prompt_ids) for e in examples] == [f"{e.id}\n\n" for e in examples]
    first, again, other = (read(path, "--max_train_samples=10", f"--seed={seed}") for seed in (1, 1, 2))
    assert first == again
    assert (len(first), first != other) == (10, True)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pandas.DataFrame([{"instruction": "i", "input": "", "output": "o"}]).to_parquet(path)
    assert read(path) == [("i\n\n", "o<|eos|>")]
    (tmp_path / "data.json").write_text(json.dumps([{"prompt": "q", "response": "a"}]))
    assert read(tmp_path / "data.json") == [("q\n\n", "a<|eos|>")]
    hub = tmp_path / "hub"
    hub.mkdir()
    configs = "".join(f"- {{config_name: {name}, data_files: {name}.jsonl}}\n" for name in "ab")
    (hub / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for name in "ab":
        write_rows(hub / f"{name}.jsonl", [{"prompt": "q", "response": name}])
    assert read(hub, "--dataset_config=b") == [("q\n\n", "b<|eos|>")]


def test_a_templated_answer_ends_with_its_turn(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [{"system_prompt": "s", "question": "q", "response": "yes"}])
    assert read(path, "--apply_chat_template") == [("<system>s<user>q<assistant>", "yes")]
    tokenizer = tiny_tokenizer()
    # As LLaDA-8B-Instruct's, which begins an answer whether or not that is asked for.
    turns = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}<|eos|>{% endfor %}<assistant>"
    tokenizer.chat_template = turns
    assert read(path, "--apply_chat_template", tokenizer=tokenizer) == [
        ("<system>s<|eos|><user>q<|eos|><assistant>", "yes<|eos|>")
    ]
    tokenizer.chat_template = "{{ messages | length }}"
    with pytest.raises(OptionError, match="renders a prompt differently once it is answered"):
        read(path, "--apply_chat_template", tokenizer=tokenizer)


def test_generated_data_repeats_by_seed_and_asks_for_numbers() -> None:
    texts = list(islice(number_questions(1), 50))
    assert texts == list(islice(number_questions(1), 50)) != list(islice(number_questions(2), 50))
    for prompt, answer in texts:
        assert prompt.endswith("Answer:[")
        assert answer in ("A].", "B].", "C].")
        options = re.findall(r"\([ABC]\) (\w+)", prompt)
        assert all(option.isdigit() for option in options)
        assert 15 <= len(options) / 3 <= 50
