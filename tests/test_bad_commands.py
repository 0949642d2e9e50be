"""`lm_eval` ends in one sentence where what it was given cannot be used, and says what it wrote where it can.

A new bad command is a row of this table. All run in this process, without lm-eval's thousands of tasks.
"""

import json
import os
import shutil
import sqlite3
import sys
from argparse import Namespace
from pathlib import Path

import lm_eval.tasks
import pytest
import torch
import yaml
from lm_eval.__main__ import cli_evaluate
from lm_eval.config.evaluate_config import EvaluatorConfig
from safetensors.torch import load_file, save_file

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.plugin import command
from mdlm_lm_eval.request_cache import RequestCache

SUITE = "mdlm_verb_smallest"
COMMANDS = [
    (
        "--tasks {suite} --metadata fewshot_relevant=-1",
        "fewshot_relevant must be a whole number from 0 up to 10000, not -1",
    ),
    (
        "--tasks {suite} --metadata fewshot_relevant=abc",
        "fewshot_relevant must be a whole number from 0 up to 10000, not abc",
    ),
    (
        "--tasks {suite} --metadata fewshot_relevant=nan",
        "fewshot_relevant must be a whole number from 0 up to 10000, not nan",
    ),
    (
        "--tasks {suite} --metadata fewshot_relevant=10000000",
        "fewshot_relevant must be a whole number from 0 up to 10000",
    ),
    ("--tasks {suite} --metadata fewshot_seed=abc", "fewshot_seed must be a whole number from 0 up to "),
    ("--tasks {suite} --metadata fewshot_distractors=1.5", "fewshot_distractors must be a whole number from 0 up to"),
    ("--tasks {suite} --metadata fewshot_relevent=3", "fewshot_relevent=3; did you mean fewshot_relevant?"),
    ("--tasks {suite} --metadata foo=1", "unknown setting of the few-shot tasks foo=1; the options are fewshot_"),
    ("--tasks {suite} --num_fewshot 5", "use --metadata fewshot_relevant=... fewshot_distractors=..."),
    ("--tasks {suite} --num_fewshot 0", "use --metadata fewshot_relevant=0 fewshot_distractors=0"),
    ("--tasks {suite} --num_fewshot -1", "--num_fewshot must be a whole number from 0, not -1"),
    ("--tasks {suite} --limit -1", "--limit must be a whole number from 1, or a share below 1, not -1"),
    ("--tasks {suite} --limit nan", "--limit must be a whole number from 1, or a share below 1, not nan"),
    ("--tasks {suite} --limit 0", "--limit must be a whole number from 1, or a share below 1, not 0"),
    ("--tasks {suite} --limit inf", "--limit must be a whole number from 1, or a share below 1, not inf"),
    ("--tasks {suite} --limit 1.5", "--limit must be a whole number from 1, or a share below 1, not 1.5"),
    ("--tasks {suite} --metadata fewshot_seed=1,fewshot_seed=2", "fewshot_seed stands there twice in fewshot_seed=1,"),
    ("--tasks {suite} --limit 1_0", "--limit must be a whole number from 1, or a share below 1, not 1_0"),
    ("--tasks {suite} --limit １", "--limit must be a whole number from 1, or a share below 1, not １"),
    ("--tasks {suite} --model MDLM", "--model must be typed mdlm, not MDLM"),
    ("--tasks {suite} --include_path /nowhere", "include_path must be a folder with tasks, not /nowhere"),
    ("--tasks {suite} --output_path s3://a/b", "--output_path s3:/a/b: must be a folder on a disk"),
    ("--tasks {suite} --seed -1", "--seed must be a whole number from 0 up to 4294967295, not -1"),
    ("--tasks {suite} --seed abc", "--seed must be a whole number from 0 up to 4294967295, not abc"),
    ("--tasks {suite} --seed 1,2", "--seed must be one number, or three or four with commas between them, not 1,2"),
    ("--tasks {suite} --model_args quantization_config={{}}", "Invalid JSON: quantization_config={}. Hint: "),
    ("--tasks {suite} --metadata {{", "Invalid JSON: {. Hint: Use double quotes for JSON strings."),
    ("--tasks {suite} --gen_kwargs {deep}", "recursion"),
    ("--tasks {suite} --model_args n_masks=0x10", "n_masks must be typed in plain digits, not 0x10"),
    ("--tasks {suite} --model_args n_masks=１０", "n_masks must be typed in plain digits, not １０"),
    ("--tasks {suite} --gen_kwargs steps=1_0", "steps must be typed in plain digits, not 1_0"),
    ("--tasks {suite} --metadata fewshot_relevant=0x5", "fewshot_relevant must be typed in plain digits, not 0x5"),
    (
        "--tasks {suite} --model_args revision=1.10",
        "revision=1.10 would be read as 1.1; type it with both pairs of quotes: 'revision=\"1.10\"'",
    ),
    ("--tasks {suite} --model_args revision=0012345", "revision=0012345 would be read as 12345; type it with both"),
    ("--tasks {suite} --model_args revision=1234e56", "revision=1234e56 would be read as 1.234e+59; type it with"),
    ("--tasks {suite} --gen_kwargs filler=007", "filler=007 would be read as 7; type it with both"),
    ('--tasks {suite} --model_args {{"n_masks":8}} steps=2', "steps=2 has no effect behind JSON; put it into the JSON"),
    ("--tasks {folder}", "No tasks found; --tasks must name tasks, or a folder that holds some (*.yaml)"),
    ("--tasks nosuchtask", "Tasks not found: nosuchtask"),
    ("--tasks /etc/passwd", "Tasks not found: /etc/passwd"),
    ("--tasks EMPTY", "--tasks is not set; name at least one, such as mdlm_context"),
    ("--tasks {suite} --output_path EMPTY", "--output_path is not set; name a folder, such as results"),
    ("--tasks {suite} --device EMPTY", "--device is not set; name one, such as cuda:0"),
    ("--tasks {suite} --output_path {long}.json", "--output_path must be a file's name of at most 200 bytes, not xxx"),
    ("--tasks {suite} --use_cache {folder}/loop", "loop_rank0.db is no request cache: unable to open database file"),
    ("--tasks {suite} --use_cache EMPTY", "--use_cache is not set; name a file, such as cache/model"),
    ("--tasks {suite} --output_path /proc/x", "--output_path /proc/x cannot be written: "),
    ("--tasks {suite} --output_path /etc/passwd", "--output_path /etc/passwd cannot be written: "),
    ("--tasks {suite} --output_path /etc/passwd/x", "--output_path /etc/passwd/x cannot be written: "),
    ("--tasks {suite} --output_path {long}", "cannot be written: File name too long"),
    ("--tasks {suite} --use_cache {folder}/garbage", "garbage_rank0.db is no request cache: file is not a database"),
    (
        "--tasks {suite} --use_cache {folder}/folder",
        "folder_rank0.db is no request cache: unable to open database file",
    ),
    ("--tasks {suite} --use_cache {folder}/device", "device_rank0.db is a device; name another file"),
    ("--tasks {suite} --use_cache {folder}/{long}", "--use_cache must be a file's name of at most 200 bytes, not xxx"),
    ("--tasks {suite} --batch_size EMPTY", "--batch_size is not set; name auto or a number"),
    ("--tasks {suite} --verbosity foo", "--verbosity must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not FOO"),
    ("--tasks {suite} --use_cache /proc/nope/x", "--use_cache /proc/nope cannot be written: "),
    ("--tasks {suite} --use_cache {folder}/other", "other_rank0.db was not filled by --model mdlm"),
    ("--tasks {suite} --model_args pretrained={folder}/no_template --apply_chat_template", "--apply_chat_template"),
    ("--tasks {suite} --model_args pretrained={folder}/constant --apply_chat_template", "--apply_chat_template"),
    ("--tasks {suite} --model_args pretrained={folder}/unclosed --apply_chat_template", "--apply_chat_template"),
    ("--tasks {suite} --model_args pretrained={folder}/raises --apply_chat_template", "--apply_chat_template"),
    (
        "--tasks {suite} --model_args pretrained={folder}/one_template --apply_chat_template nosuch",
        "--apply_chat_template nosuch: this model's tokenizer has one template, without a name; leave the name out",
    ),
    (
        "--tasks {suite} --model_args pretrained={folder}/no_template --apply_chat_template nosuch",
        "--apply_chat_template nosuch: this model's tokenizer has no template; leave the name out",
    ),
    ("--tasks {suite} --model_args pretrained={folder}/two --apply_chat_template nosuch", "['default', 'plain']"),
    ("--tasks {suite} --model_args pretrained={folder}/damaged", f"not finite (NaN or infinity) for the task {SUITE}"),
    ("--tasks tiny_choice --model_args pretrained={folder}/damaged", "not finite (NaN or infinity) for the task tiny_"),
    ("--tasks {suite} --model_args pretrained={long}", "pretrained=xxx"),
]
TEMPLATES = {
    "no_template": None,
    "constant": "hello",
    "unclosed": "{% for m in messages %}",
    "raises": "{{ 1 / 0 }}",
    "one_template": "{{ messages[0].content }}",
    "two": [{"name": "default", "template": "of default"}, {"name": "plain", "template": "{{ messages[0].content }}"}],
}


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Broken checkpoints and request caches."""
    folder = tmp_path_factory.mktemp("bad")
    for name, template in TEMPLATES.items():
        shutil.copytree(checkpoint, folder / name)
        (folder / name / "chat_template.jinja").unlink()
        settings = json.loads((folder / name / "tokenizer_config.json").read_text())
        settings |= {} if template is None else {"chat_template": template}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(settings))
    shutil.copytree(checkpoint, folder / "damaged")
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], torch.nan)
    save_file(weights, folder / "damaged" / "model.safetensors", {"format": "pt"})
    (folder / "garbage_rank0.db").write_text("no database at all " * 100)
    (folder / "folder_rank0.db").mkdir()
    (folder / "loop_rank0.db").symlink_to("loop_rank0.db")
    (folder / "device_rank0.db").symlink_to(os.devnull)
    with sqlite3.connect(folder / "other_rank0.db") as connection:
        connection.execute("CREATE TABLE unnamed (key TEXT PRIMARY KEY, value BLOB)")
        connection.execute("INSERT INTO unnamed VALUES ('key', x'80049504000000000000008c015894')")
    return folder


def know_tasks_of(monkeypatch: pytest.MonkeyPatch, task_folder: Path) -> None:
    """Lets lm-eval know the tasks of this package and of `task_folder`, without its own thousands."""
    manager = lm_eval.tasks.TaskManager
    folders = [tasks_path(), task_folder]
    monkeypatch.setattr(
        lm_eval.tasks,
        "TaskManager",
        lambda include_path, metadata: manager(include_path=folders, include_defaults=False, metadata=metadata),
    )


def run(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, task_folder: Path, words: list[str]) -> None:
    """Runs `lm_eval --model mdlm`, on two questions and the tiny model where the words say nothing else."""
    know_tasks_of(monkeypatch, task_folder)
    typed = ["lm_eval", "--model", "mdlm", "--device", "cpu", *words]
    typed += [] if "--limit" in words else ["--limit", "2"]
    typed += [] if "--model_args" in words else ["--model_args", f"pretrained={checkpoint}"]
    monkeypatch.setattr(sys, "argv", typed)
    cli_evaluate()


@pytest.mark.parametrize(("words", "sentence"), COMMANDS)
def test_bad_commands(
    words: str, sentence: str, folder: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        "" if word == "EMPTY" else word.format(suite=SUITE, folder=folder, long="x" * 300, deep="[" * 100_000)
        for word in words.split()
    ]
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, checkpoint, task_folder, given)
    said = str(ended.value.code)
    assert said.startswith("lm_eval: ")
    assert sentence in said
    assert "\n" not in said


def test_results_of_the_built_in_model_lie_under_its_name(
    checkpoint: Path,
    task_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--tasks", "tiny_generate", "--output_path", str(tmp_path), "--model_args", "n_masks=1", "--log_samples"]
    run(monkeypatch, checkpoint, task_folder, words)
    (results,) = (tmp_path / "built-in").glob("results_*.json")
    (samples,) = (tmp_path / "built-in").glob("samples_tiny_generate_*.jsonl")
    assert capsys.readouterr().out.splitlines()[-2:] == [f"written: {results}", f"written: {samples}"]


FORM = 'tasks with the numbers of their questions, such as {"gsm8k": [0, 5]}'
NUMBERS = "--samples of t must be whole numbers from 0, in rising order and each once"


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ("/nowhere/nofile.json", "--samples /nowhere/nofile.json: there is no such file"),
        ([0, 1], f"--samples must be {FORM}, not [0, 1]"),
        ({}, f"--samples must be {FORM}, not {{}}"),
        ("[0, 1]", f"--samples must be {FORM}, not [0, 1]"),
        (__file__, f"--samples {__file__}: cannot be read: "),
        ({"t": [5, 2]}, f"{NUMBERS}, not [5, 2]"),
        ({"t": [2, 2]}, f"{NUMBERS}, not [2, 2]"),
        ({"t": []}, f"{NUMBERS}, not []"),
        ({"t": 5}, f"{NUMBERS}, not 5"),
        ({"t": [-1]}, f"{NUMBERS}, not [-1]"),
        ({"t": [1.5]}, f"{NUMBERS}, not [1.5]"),
        ({"t": [True]}, f"{NUMBERS}, not [True]"),
    ],
)
def test_samples_that_lm_eval_would_take_for_others(samples: object, sentence: str) -> None:
    with pytest.raises(OptionError) as error:
        command.check({"samples": samples})
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ('{"tiny_choise": [0]}', "--samples: tiny_choise is no task that is evaluated; did you mean tiny_choice?"),
        ('{"tiny_choice": [0, 5]}', "--samples of tiny_choice must be whole numbers below 5, not 5"),
    ],
)
def test_samples_beyond_the_tasks(
    samples: str, sentence: str, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_tasks_of(monkeypatch, task_folder)
    words = ["--model", "mdlm", "--device", "cpu", "--model_args", f"pretrained={checkpoint}", "--samples", samples]
    monkeypatch.setattr(sys, "argv", ["lm_eval", *words, "--tasks", "tiny_choice"])
    with pytest.raises(SystemExit) as ended:
        cli_evaluate()
    assert str(ended.value.code).startswith(f"lm_eval: {sentence}")
    assert "\n" not in str(ended.value.code)


def run_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **settings: object) -> None:
    """Runs `lm_eval run --config`, on a YAML of these settings."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"model": "mdlm", "device": "cpu", "limit": 2} | settings))
    monkeypatch.setattr(sys, "argv", ["lm_eval", "run", "--config", str(tmp_path / "run.yaml")])
    cli_evaluate()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"output_path": "/proc/x"}, "--output_path /proc/x cannot be written: "),
        ({"limit": -1}, "--limit must be a whole number from 1, or a share below 1, not -1"),
        ({"seed": "1,x"}, "--seed must be a whole number"),
        ({"gen_kwargs": {"n_mask": 5}}, "unknown generation option n_mask=5; did you mean n_masks?"),
        ({"gen_kwargs": {"n_masks": "many"}}, "n_masks must be auto or a whole number from 1, not many"),
        ({"tasks": "mdlm_context", "metadata": {"fewshot_sed": 5}}, "did you mean fewshot_seed?"),
        ({"model": "MDLM"}, "--model must be typed mdlm, not MDLM"),
        ({"limitt": 2}, "run.yaml: limitt=2; did you mean limit?"),
        ({"seed": [1, 2]}, "seed expects a single value or 4 values"),
        ({"samples": {"mdlm_verb_smallest": [0]}}, "If --samples is not None, then --limit must be None."),
        ({"limit": "2"}, "limit must be a number, not '2'"),
        ({"num_fewshot": "0"}, "num_fewshot must be a number, not '0'"),
        ({"cache_requests": True}, 'names with a value each, such as {"cache_requests": true}, not true'),
        ({"cache_requests": None}, 'names with a value each, such as {"cache_requests": true}, not none'),
        ({"use_cache": True}, "use_cache must be a text, not true"),
        ({"system_instruction": 5}, "system_instruction must be a text, not 5"),
        ({"output_path": 5}, "output_path must be a text, not 5"),
        ({"log_samples": "false"}, "log_samples must be true or false, not 'false'"),
        ({"model_args": ["n_masks=8"]}, "model_args must be names with a value each, not ['n_masks=8']"),
        ({"metadata": 5}, "metadata must be names with a value each, not 5"),
        ({"gen_kwargs": "stop=x"}, "unknown generation option stop=x; did you mean until?"),
        ({"tasks": [{"task": "x"}]}, "tasks must be names of tasks, not {'task': 'x'}"),
        ({"tasks": 5}, "tasks must be names of tasks, not 5"),
    ],
)
def test_settings_in_a_yaml_are_checked_like_flags(
    settings: dict[str, object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: object) -> None:
        raise AssertionError("tasks are looked for")

    monkeypatch.setattr(EvaluatorConfig, "process_tasks", load)
    with pytest.raises(SystemExit) as ended:
        run_config(monkeypatch, tmp_path, **{"tasks": ["mdlm_verb_smallest"]} | settings)
    assert sentence in str(ended.value.code)


@pytest.mark.parametrize(
    ("below", "lost"),
    [
        ({"model_args": {"pretrained": "/tmp/mine", "steps": 8}}, "pretrained, steps; type those too"),
        ({"model_args": "pretrained=/tmp/mine,n_masks=8"}, "pretrained; type that too"),
        ({"gen_kwargs": {"n_masks": 8, "until": ["x"]}}, "until; type that too"),
        ({"metadata": {"fewshot_seed": 5}}, "fewshot_seed; type that too"),
    ],
)
def test_what_is_typed_loses_nothing_of_a_yaml(
    below: dict[str, object], lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (option,) = below
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"model": "mdlm", "tasks": "mdlm_context"} | below))
    typed = "fewshot_relevant=1" if option == "metadata" else "n_masks=16"
    monkeypatch.setattr(sys, "argv", ["lm_eval", "run", "--config", str(path), f"--{option}", typed])
    with pytest.raises(SystemExit) as ended:
        cli_evaluate()
    assert ended.value.code == (
        f"lm_eval: --{option} replaces all that {option} in --config {path} says, and leaves out {lost}"
    )


def test_numbers_typed_beside_a_yaml_are_typed_in_plain_digits(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: mdlm")
    words = ["--config", str(tmp_path / "run.yaml"), "--model_args", "n_masks=0x10"]
    with pytest.raises(SystemExit) as ended:
        command.parse(Namespace, words)
    assert ended.value.code == "lm_eval: n_masks must be typed in plain digits, not 0x10"


@pytest.mark.parametrize(
    ("gen_kwargs", "sentence"),
    [
        (
            {"temperature": 0.5},
            "temperature=0.5 loses to temperature=0 of preset=llada-8b-base/gsm8k; type",
        ),
        ({"top_p": 0.5}, "top_p=0.5 loses to top_p=0.9 of --model_args; type top_p in --model_args"),
        ({"do_sample": True}, "do_sample=true loses to temperature=0 of preset=llada-8b-base/gsm8k"),
        ({"max_new_tokens": 9}, "max_new_tokens=9 loses to a task's max_gen_toks; type max_gen_toks=9"),
    ],
)
def test_sampling_that_would_lose_to_something_else(gen_kwargs: dict[str, object], sentence: str) -> None:
    model_args = {"preset": "llada-8b-base/gsm8k", "top_p": 0.9}
    command.check({"gen_kwargs": {"temperature": 0.0, "top_p": 0.9, "max_gen_toks": 9}, "model_args": model_args})
    with pytest.raises(OptionError) as error:
        command.check({"gen_kwargs": gen_kwargs, "model_args": model_args})
    assert str(error.value).startswith(f"--gen_kwargs {sentence}")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"wandb_args": {"project": "x"}}, "--wandb_args needs the package wandb: pip install wandb"),
        ({"trackio_args": {"project": "x"}}, "--trackio_args needs the package trackio: pip install trackio"),
        ({"hf_hub_log_args": {"frob": True}}, "unknown argument of --hf_hub_log_args frob=true; the options are "),
        (
            {"hf_hub_log_args": {"push_results_to_hub": True}},
            "--hf_hub_log_args push_results_to_hub=true needs a token: set HF_TOKEN",
        ),
    ],
)
def test_results_that_could_not_be_sent(
    settings: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(OptionError) as error:
        command.check(settings)
    assert str(error.value).startswith(sentence)


def test_results_of_a_yaml_are_named(
    checkpoint: Path,
    task_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    know_tasks_of(monkeypatch, task_folder)
    model_args = {"pretrained": str(checkpoint), "n_masks": 1}
    run_config(monkeypatch, tmp_path, tasks="tiny_generate", seed=1, model_args=model_args, output_path=str(tmp_path))
    (results,) = tmp_path.glob("*/results_*.json")
    assert capsys.readouterr().out.splitlines()[-1] == f"written: {results}"


def test_a_result_that_is_cut_off_is_said(
    checkpoint: Path, task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def write_half(path: Path, text: str, **named: str) -> int:
        return write(path, text[: len(text) // 2] if path.name.startswith("results_") else text, **named)

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, checkpoint, task_folder, ["--tasks", "tiny_generate", "--output_path", str(tmp_path)])
    assert str(ended.value.code).startswith(
        f"lm_eval: --output_path {tmp_path}: the results could not be written whole"
    )


def test_a_full_disk_is_said(
    checkpoint: Path, task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RequestCache, record: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(RequestCache, "save", full)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, checkpoint, task_folder, ["--tasks", "tiny_generate", "--use_cache", str(tmp_path / "c")])
    assert ended.value.code == "lm_eval: --use_cache: database or disk is full"


def test_ctrl_c_prints_no_traceback(
    checkpoint: Path,
    task_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MDLM, "generate_until", stop)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, checkpoint, task_folder, ["--tasks", "tiny_generate"])
    assert ended.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "lm_eval: stopped; with --use_cache the same command goes on"
