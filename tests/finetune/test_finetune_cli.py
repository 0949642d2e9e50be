"""The command: what users mistype ends in one sentence; killed and resumed; two processes."""

import json
import re
import sys
import time
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from mdlm_finetune.__main__ import main
from tests.conftest import refused
from tests.support.commands import run, start

SMALL = ["per_device_train_batch_size=2", "max_train_samples=64", "max_length=200", "lora_r=4", "evaluation_limit=0"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(n), "response": str(n * n)}) + "\n" for n in range(64)))
    return path


def flags(data: Path | str, checkpoint: Path | str, output: Path | str, *changes: str) -> list[str]:
    where = [f"train_file={data}", f"model_name_or_path={checkpoint}", f"output_dir={output}"]
    return ["--config=built-in-ce-tv", *(f"--{flag}" for flag in (*where, *SMALL, *changes))]


def test_killed_at_any_moment_and_resumed_ends_with_the_undisturbed_weights(
    tmp_path: Path, checkpoint: Path, data: Path
) -> None:
    """Whenever it is killed, the adapter's folder is whole or not there, and --resume makes it the undisturbed one."""
    # Every step is logged: after a kill, the Trainer averages over fewer steps.
    changes = ["max_steps=30", "save_steps=1", "logging_steps=1", "merge"]
    undisturbed, output = tmp_path / "undisturbed", tmp_path / "killed"
    run("mdlm_finetune", *flags(data, checkpoint, undisturbed, *changes))
    words, moments = flags(data, checkpoint, output, *changes), Random(0)
    first = tmp_path / "killed.checkpoints" / "checkpoint-1" / "trainer_state.json"
    for attempt in range(3):
        process = start("mdlm_finetune", *words, *["--resume"] * bool(attempt), log=tmp_path / "log")
        while not first.exists() and process.is_alive() and not attempt:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.5) if attempt == 0 else moments.uniform(0.2, 2))
        process.kill()
        process.join()
        if output.exists():
            break
    if not output.exists():
        run("mdlm_finetune", *words, "--resume")
    weights, resumed = (load_file(folder / "adapter_model.safetensors") for folder in (undisturbed, output))
    assert weights.keys() == resumed.keys()
    for name, weight in weights.items():  # bit for bit: both ran on this machine; another CPU sums in other orders
        assert torch.equal(weight, resumed[name]), name
    assert {path.name for path in output.iterdir()} == {path.name for path in undisturbed.iterdir()}
    cards = [(folder / "README.md").read_text().replace("killed", "undisturbed") for folder in (undisturbed, output)]
    assert cards[0] == cards[1]


def test_two_processes_have_the_losses_of_one(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    logs = {}
    for processes in (1, 2):
        output, batch = tmp_path / f"out{processes}", f"per_device_train_batch_size={4 // processes}"
        changes = ["max_steps=6", "save_steps=6", "logging_steps=1", "gradient_accumulation_steps=2", batch]
        run("mdlm_finetune", *flags(data, checkpoint, output, *changes), processes=processes)
        assert f"processes: {processes}\n" in (tmp_path / f"out{processes}.checkpoints" / "recipe.yaml").read_text()
        state = tmp_path / f"out{processes}.checkpoints" / "checkpoint-6" / "trainer_state.json"
        logs[processes] = json.loads(state.read_text())["log_history"]
    for name in ("loss", "cross_entropy", "consistency", "grad_norm"):
        one, two = ([entry[name] for entry in logs[n] if name in entry] for n in (1, 2))
        assert len(set(one)) == 6
        assert one == pytest.approx(two, rel=1e-3), name


# Each ends before anything is trained or left behind


@pytest.fixture
def here(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a model, in which the command runs."""
    (tmp_path / "data.jsonl").write_text('{"prompt": "one", "response": "two"}\n' * 8)
    (tmp_path / "columns.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "user_only.jsonl").write_text('{"messages": [{"role": "user", "content": "q"}]}\n')
    (tmp_path / "wrong.yaml").write_text("output_dir: out/a\nbetta: 1\n")
    for name, text in {"cut.yaml": "beta: [1", "word.yaml": "beta", "empty.yaml": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "model").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("given", "message"), refused("mdlm-finetune"))
def test_is_refused(
    given: str, message: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*flags("data.jsonl", "model", "out/a", "max_steps=1"), *given.split()]
    monkeypatch.setattr(sys, "argv", ["mdlm-finetune", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert re.search(f"mdlm-finetune: .*{re.escape(message)}", capsys.readouterr().err)
    assert not [*here.glob("out/**/*")]
