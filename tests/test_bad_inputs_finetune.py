"""What users mistype to mdlm-finetune: each ends in one sentence, before anything is trained or left behind."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

from mdlm_finetune import instructions
from mdlm_finetune.__main__ import main
from mdlm_finetune.objective import NoisedBatch
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from tests.commands import ENVIRONMENT

FILES = {
    "data.jsonl": '{"prompt": "one", "response": "two"}\n' * 8,
    "user_only.jsonl": '{"messages": [{"role": "user"}]}\n',
    "no_content.jsonl": '{"messages": [{"role": "user"}, {"role": "assistant", "content": "a"}]}\n',
    "number.jsonl": "17\n",
    "surrogate.jsonl": '{"prompt": "\\ud800", "response": "a"}\n',
    "broken.jsonl": '{"prompt": "a"\n',
    "deep.jsonl": '{"prompt": "a", "response": ' + "[" * 200_000 + "]" * 200_000 + "}\n",
    "long_line.jsonl": '{"prompt": "a", "response": "' + "x" * 3000 + '"}\n',
    "lines.json": '{"prompt": "a"}\n{"prompt": "b"}\n',
    "empty.jsonl": "",
    "columns.jsonl": '{"text": "a"}\n',
    "not_parquet.parquet": "PAR1",
    "deep.yaml": "a: " + "[" * 20_000 + "]" * 20_000,
    "date.yaml": "lora_dropout: 2026-01-31\n",
    "hexadecimal.yaml": "lora_r: 0x10\n",
    "list.yaml": "- a\n",
    "ring.yaml": "report_to: &a [*a]\n",
    "large.yaml": "#" * 2 * 2**20,
    "tab.yaml": "a:\n\t- b: [\n",
    "inner.yaml": "output_dir: out\nlora_target_modules: [{a: b}]\ndataset_name: number_questions\n",
    "accelerate.json": "{",
}


@pytest.fixture
def here(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files above, in which the command runs."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.yaml").write_bytes(b"output_dir: caf\xe9")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "model").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(instructions, "LONGEST_LINE", 2000 * 1000)
    return tmp_path


def words(*given: str) -> list[str]:
    """A run of a tiny model, with `given` on top."""
    run = ["--model_name_or_path=model", "--output_dir=out/a", "--max_length=200", "--max_steps=1", "--lora_r=4"]
    data = [] if any("dataset_name" in word for word in given) else ["--train_file=data.jsonl"]
    return ["--config=built-in-ce-tv", *run, "--evaluation_limit=0", *data, *given]


def refusal(given: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["mdlm-finetune", *given])
    with pytest.raises(SystemExit) as stop:
        main()
    sentence = stop.value.code
    assert isinstance(sentence, str)
    assert sentence.startswith("mdlm-finetune: ")
    assert "\n" not in sentence
    assert len(sentence) < 700
    return sentence


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # names and values of flags
        ("--lora_r=100000", "lora_r must be at most 32, the width of the model, not 100000"),
        ("--lora_r=1000000000", "lora_r must be a number from 1 up to 100000, not 1000000000"),
        ("--lora_r=-1", "lora_r must be a number from 1 up to 100000, not -1"),
        ("--learning_rate=1e30", "learning_rate must be a number below 18446744073709551616, not 1e30"),
        ("--lora_dropout=2", "lora_dropout must be a number from 0 up to 0.99, not 2"),
        ("--lora_target_modules=(", r"lora_target_modules=\(: "),
        (
            "--max_train_samples=99999999999",
            "max_train_samples must be a number from 1 up to 10000000, not 9+",
        ),
        ("--max_steps=99999999999", "max_steps must be a number from 1 up to 10000000, not 9"),
        ("--max_steps=1.5", "max_steps must be a whole number, not 1.5"),
        ("--max_steps=0x10", "max_steps must be a whole number, not 0x10"),
        ("--max_steps=1_0", "max_steps must be a whole number, not 1_0"),
        ("--max_steps=３", "max_steps must be a whole number, not ３"),
        ("--max_steps", "max_steps expected one argument"),
        ("--max_length=1000000000", "max_length must be a number from 2 up to"),
        ("--max_length=5000", "max_length must be at most 256, the context of model, not 5000"),
        ("--seed=99999999999999999999999", "seed must be a whole number below 18446744073709551616, not 9+"),
        ("--learning_rate=1e-400", "learning_rate must be a number above 0, not 0"),
        ("--learning_rate=-1", "learning_rate must be a number above 0, not -1"),
        ("--weight_decay=nan", "weight_decay must be a number, not nan"),
        ("--adam_beta1=inf", "adam_beta1 must be a number, not inf"),
        ("--max_grad_norm=abc", "max_grad_norm must be a number, not abc"),
        ("--dataloader_num_workers=-1", "dataloader_num_workers must be a number from 0 up to 1000, not -1"),
        ("--use_cpu=maybe", "use_cpu .*got maybe but expected one of yes/no, true/false"),
        ("--gradient_checkpointing=maybe", "gradient_checkpointing .*got maybe"),
        ("--apply_chat_template=2", "apply_chat_template .*got 2"),
        ("--resume=maybe", "resume .*got maybe"),
        ("--resume maybe", "resume .*got maybe"),
        ("--resume --overwrite", "--resume, --overwrite and --evaluate exclude one another"),
        ("--resume_from_checkpoint=x", "resume_from_checkpoint must be left out; --resume"),
        ("--fp16=true", "fp16 must be left out without a GPU"),
        ("--save_only_model=true", "save_only_model must be left out; --resume goes on from checkpoints that hold"),
        ("--num_train_epochs=2", "num_train_epochs must be left out; max_steps says how long"),
        ("--push_to_hub=true --hub_token=hf_x", "push_to_hub must be left out; hf upload REPOSITORY OUTPUT_DIR"),
        ("--label_smoothing_factor=2", "label_smoothing_factor must be left out; the objective has a loss of its own"),
        ("--dtype=int8", "dtype invalid choice: 'int8'"),
        ("--lr_scheduler_type=steep", "steep"),
        ("--eval_strategy=steps", "eval_strategy"),
        ("--report_to=nowhere", "nowhere"),
        ("--accelerator_config=accelerate.json", "Expecting property name"),
        ("--accelerator_config=absent.json", "absent.json"),
        ("--lr_scheduler_kwargs={", "Expecting property name"),
        (
            "--gradient_checkpointing_kwargs=5",
            "gradient_checkpointing_kwargs must be names with a value each, .* not 5",
        ),
        ("--lr_scheduler_kwargs=[1]", r"lr_scheduler_kwargs must be names with a value each, in JSON, not \[1\]"),
        ("--alpha=0", "alpha must be a number above 0, not 0"),
        ("--alpha=nan", "alpha must be a number, not nan"),
        ("--beta=-1", "beta must be a number from 0, not -1"),
        ("--p_low=0.9", "p_low=0.9, p_high=0.8: must be 0 < p_low <= p_high <= 1"),
        ("--masks_end=0", "masks_start=1, masks_end=0: must be"),
        ("--curriculum_passes=-1", "curriculum_passes must be a whole number from 0, not -1"),
        ("--divergence=js", "divergence invalid choice: 'js'"),
        ("--adam_beta1=2", "adam_beta1 must be a number from 0 up to 0.9999999, not 2"),
        ("--objective=", "objective must be one of mask_agnostic, sft, not ''"),
        ("--objective=dpo", "objective must be one of mask_agnostic, sft, not dpo"),
        ("--objective=sft", "unknown key beta"),
        ("--betta=1", "unknown key betta=1; did you mean beta"),
        ("--betta 1", "unknown key betta=1; did you mean beta"),
        ("--set steps=3", "set is now a flag of its own for each key"),
        ("steps=3", "steps=3 is not understood; flags are --KEY VALUE"),
        # data
        ("--dataset_name=number_questions --apply_chat_template=true", "apply_chat_template must be left out for"),
        (
            "--train_file=data.jsonl --dataset_name=number_questions",
            "train_file or dataset_name must be given, and not both",
        ),
        ("--train_file=s3://x/y.jsonl", "must be a file on this machine, or .*, not s3://x/y.jsonl"),
        ("--dataset_name=", "must be a file on this machine, or .*, not ''"),
        ("--dataset_name=s3://x/y", "must be a file on this machine, or .*, not s3://x/y"),
        ("--dataset_name=no/such_data", "dataset_name=no/such_data: cannot be read"),
        ("--train_file=absent.jsonl", "train_file=absent.jsonl: there is no such file"),
        ("--train_file=data.csv", r"train_file=data.csv: must be a \.jsonl, \.json or \.parquet file"),
        ("--train_file=pipe.jsonl", "train_file=pipe.jsonl: there is no such file"),
        ("--train_file=zero.jsonl", "train_file=zero.jsonl: there is no such file"),
        ("--train_file=user_only.jsonl", "holds no example to train on; rows skipped: 1 without an answer"),
        ("--train_file=no_content.jsonl", "row 0 counted from 0: message 0 has content=None"),
        ("--train_file=number.jsonl", "train_file=number.jsonl: line 1: 17 is no row"),
        ("--train_file=surrogate.jsonl", "row 0 counted from 0: .*surrogates not allowed"),
        ("--train_file=broken.jsonl", "train_file=broken.jsonl: line 1 is no JSON"),
        ("--train_file=deep.jsonl", "train_file=deep.jsonl: line 1 is nested too deeply"),
        ("--train_file=lines.json", "train_file=lines.json: line 1 is no JSON: Extra data"),
        ("--train_file=empty.jsonl", "holds no example to train on"),
        (
            "--dataloader_drop_last=true --per_device_train_batch_size=9",
            "dataloader_drop_last=True leaves nothing of 8 examples: a pass takes 9",
        ),
        ("--train_file=columns.jsonl", "row 0 counted from 0: the data has the columns text"),
        ("--train_file=not_parquet.parquet", "train_file=not_parquet.parquet: cannot be read"),
        # recipes
        ("--config=built-in-cetv", "config=built-in-cetv: must be a file or one of built-in-ce"),
        ("--config=.", "config=.: cannot be read"),
        ("--config=zero.jsonl", "config=zero.jsonl: is no regular file"),
        ("--config=pipe.jsonl", "config=pipe.jsonl: is no regular file"),
        ("--config=large.yaml", r"config=large.yaml: has \d+ MiB; at most 1 are read"),
        ("--config=hexadecimal.yaml", "config=hexadecimal.yaml: the number in line 1 must be typed in plain digits"),
        ("--config=deep.yaml", "config=deep.yaml: cannot be read"),
        ("--config=date.yaml", "lora_dropout must be a number, not .*2026-01-31"),
        ("--config=list.yaml", "config=list.yaml: must hold keys and values"),
        ("--config=ring.yaml", r"report_to must be a value, or a list of values, not \[\[...\]\]"),
        ("--config=tab.yaml", "config=tab.yaml: cannot be read"),
        ("--config=latin.yaml", "config=latin.yaml: cannot be read"),
        ("--config=inner.yaml --dataset_name=number_questions --lora_r=4", "lora_target_modules="),
        # places
        ("--output_dir=", "output_dir must be the name of a folder, .*not ''"),
        (
            "--output_dir=~nobody_here/a",
            "output_dir must be in the folder of a user of this machine, not ~nobody_here/a",
        ),
        ("--output_dir=out/lr=1,beta=2", "output_dir must be without a comma, and not none, not out/lr=1,beta=2"),
        ("--output_dir=None", "output_dir must be without a comma, and not none, not None"),
        ("--model_name_or_path=a,b", "model_name_or_path must be without a comma"),
        ("--output_dir=a/..", "output_dir must be the name of a folder, .*not a/.."),
        ("--output_dir=" + 300 * "x", r"output_dir must be the name of a folder, of at most 200 bytes, not x+\.\.\."),
        ("--output_dir=/proc/adapter", "output_dir /proc cannot be written"),
        ("--output_dir=data.jsonl/adapter", "output_dir data.jsonl cannot be written"),
        ("--output_dir=data.jsonl", "output_dir=data.jsonl exists already"),
        ("--evaluate --merge", "output_dir=out/a holds no adapter_config.json"),
    ],
)
def test_is_refused(given: str, message: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(here.iterdir())
    assert re.search(message, refusal(words(*given.split()), monkeypatch))
    left = [path for folder in set(here.iterdir()) - before for path in folder.rglob("*")]
    assert [path for path in left if path.suffix != ".claim"] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--dataloader_persistent_workers=true", "persistent_workers option needs num_workers > 0"),
        ("--neftune_noise_alpha=-1", "uniform_ expects"),
        ("--use_liger_kernel=true", "liger"),
        ("--optim_args=foo", "not enough values to unpack"),
        ('--gradient_checkpointing=true --gradient_checkpointing_kwargs={"a":1}', "[Uu]nexpected keyword"),
    ],
)
def test_what_only_the_trainer_refuses(given: str, message: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = refusal(words(*given.split()), monkeypatch)
    assert sentence.startswith("mdlm-finetune: the first step failed with these arguments: ")
    assert re.search(message, sentence)
    assert not list((here / "out").iterdir())


def test_what_the_trainer_refuses_replaces_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [here / "out" / "a" / "adapter_config.json", here / "out" / "a.checkpoints" / "checkpoint-1" / "state"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    refusal(words("--overwrite", "--optim_args=foo"), monkeypatch)
    assert [path for path in sorted((here / "out").rglob("*")) if path.is_file()] == files


@dataclass(frozen=True)
class Slipped(MaskAgnostic):
    """An objective with a slip in it."""

    def loss(self, logits: Tensor, batch: NoisedBatch) -> Mapping[str, Tensor]:
        raise ValueError("a slip")


def test_errors_of_an_objectives_own_code_keep_their_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdlm_finetune.objectives._registered", {"slipped": Slipped})
    monkeypatch.setattr(sys, "argv", ["mdlm-finetune", *words("--objective=slipped")])
    with pytest.raises(ValueError, match=r"^a slip$"):
        main()


def test_neither_data_nor_output(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "train_file or dataset_name must be given" in refusal(["--output_dir=out"], monkeypatch)
    assert "output_dir must be the name" in refusal(["--dataset_name=number_questions"], monkeypatch)


def test_a_line_that_is_too_long(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "LONGEST_LINE", 2000)
    sentence = refusal(words("--train_file=long_line.jsonl"), monkeypatch)
    assert sentence.endswith("train_file=long_line.jsonl: line 1 is longer than 2000 characters")


def test_a_broken_recipe_of_the_run_to_resume(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "out" / "a.checkpoints" / "checkpoint-1").mkdir(parents=True)
    (here / "out" / "a.checkpoints" / "recipe.yaml").write_text(FILES["tab.yaml"])
    assert "recipe.yaml cannot be read, so that it cannot" in refusal(words("--resume"), monkeypatch)


def test_damaged_checkpoints(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = words("--max_steps=2", "--save_steps=1")
    monkeypatch.setattr(sys, "argv", ["mdlm-finetune", *given])
    main()
    shutil.rmtree(here / "out" / "a")
    shutil.rmtree(here / "out" / "a.checkpoints" / "checkpoint-2")
    checkpoint = here / "out" / "a.checkpoints" / "checkpoint-1"
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.safetensors"):
        whole = (checkpoint / name).read_bytes()
        for damaged in (b"", b"garbage"):
            (checkpoint / name).write_bytes(damaged)
            sentence = refusal([*given, "--resume"], monkeypatch)
            assert re.search("checkpoint-1 cannot be continued: .*; remove it, or begin anew", sentence), (
                name,
                sentence,
            )
        (checkpoint / name).write_bytes(whole)


def test_flags_without_a_value_are_true(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-finetune", *words("--resume", "--merge", "--save_strategy=no")])
    main()
    assert (here / "out" / "a.merged" / "config.json").is_file()
    assert sorted(path.name for path in (here / "out").iterdir()) == ["a", "a.checkpoints", "a.merged"]


@pytest.mark.parametrize("most_bytes", [5_000, 30_000])
def test_a_full_disk(most_bytes: int, here: Path) -> None:
    """The smaller limit is met by the adapter, the larger one by the optimiser's state."""
    done = subprocess.run(
        [sys.executable, "-m", "mdlm_finetune", *words()],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("mdlm-finetune: output_dir=out/a cannot be written: ")
    left = [path.name for path in (here / "out").rglob("*") if path.is_file()]
    assert left == ["recipe.yaml"]


def test_ctrl_c_while_importing(here: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "mdlm_finetune", *words()],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        seen = ""
        while "numpy" not in seen:  # whose own import fails in a way of its own where it is interrupted
            seen += process.stderr.readline()
        process.send_signal(signal.SIGINT)
        seen += process.stderr.read()
    assert process.returncode == 130
    assert seen.splitlines()[-1] == "mdlm-finetune: stopped; it had not begun"
    assert "Traceback" not in seen


def test_ctrl_c_while_training(here: Path) -> None:
    command = [sys.executable, "-m", "mdlm_finetune", *words("--max_steps=100000", "--save_steps=1")]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        while not (here / "out" / "a.checkpoints" / "checkpoint-1").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130
    assert "mdlm-finetune: stopped; --resume goes on" in said
    assert "Traceback" not in said
    assert not list((here / "out").glob("*.claim"))


def test_help_loads_nothing_slow_and_survives_a_closed_pipe() -> None:
    script = "import sys, mdlm_finetune.__main__ as m; m.main(); print(json.dumps([*sys.modules]), file=sys.stderr)"
    command = [sys.executable, "-c", f"import json\n{script}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "numpy", "peft", "datasets"} & set(json.loads(done.stderr))
    assert "--lora_target_modules" in done.stdout
    closed, end = os.pipe()
    os.close(closed)
    done = subprocess.run(
        [*command[:-3], "-m", "mdlm_finetune", "--help"], stdout=end, stderr=subprocess.PIPE, text=True
    )
    os.close(end)
    assert done.stderr == ""
