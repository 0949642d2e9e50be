"""The command: killed and resumed, two processes, bad input."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.commands import ENVIRONMENT

SMALL = [
    "--per_device_train_batch_size=2",
    "--max_train_samples=64",
    "--max_length=200",
    "--lora_r=4",
    "--evaluation_limit=0",
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(n), "response": str(n * n)}) + "\n" for n in range(64)))
    return path


def flags(data: Path, checkpoint: Path, output: Path, *changes: str) -> list[str]:
    where = [f"--train_file={data}", f"--model_name_or_path={checkpoint}", f"--output_dir={output}"]
    return ["--config=built-in-ce-tv", *where, *SMALL, *changes]


def test_killed_and_resumed_ends_with_the_undisturbed_weights(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    changes = ["--max_steps=60", "--save_steps=5", "--save_total_limit=100"]
    command = [sys.executable, "-m", "mdlm_finetune"]
    whole = [*command, *flags(data, checkpoint, tmp_path / "whole", *changes)]
    subprocess.run(whole, env=ENVIRONMENT, check=True, capture_output=True)
    killed = [*command, *flags(data, checkpoint, tmp_path / "killed", *changes)]
    with subprocess.Popen(killed, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "killed.checkpoints" / "checkpoint-10" / "trainer_state.json").exists():
            assert process.poll() is None, "ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed").exists()
    assert not (tmp_path / "killed.checkpoints" / "checkpoint-60").exists()
    resumed = subprocess.run([*killed, "--resume"], env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert "60/60" in resumed.stderr
    weights, killed_weights = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "killed"))
    for name, weight in weights.items():
        assert torch.equal(weight, killed_weights[name]), name


SCRIPT = """
import json, sys
from pathlib import Path
from mdlm_finetune.arguments import read_arguments
from mdlm_finetune.run import finetune
trainer = finetune(*read_arguments(sys.argv[2:]))
if trainer.is_world_process_zero():
    state = {"world_size": trainer.args.world_size, "log": trainer.state.log_history}
    Path(sys.argv[1]).write_text(json.dumps(state))
"""


def test_two_processes_have_the_losses_of_one(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = {1: [sys.executable], 2: [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]}
    states = {}
    for processes, launcher in launch.items():
        log, output = tmp_path / f"{processes}.json", tmp_path / f"out{processes}"
        changes = ["--max_steps=6", "--logging_steps=1", "--gradient_accumulation_steps=2"]
        changes.append(f"--per_device_train_batch_size={4 // processes}")
        run = [*launcher, str(script), str(log), *flags(data, checkpoint, output, *changes)]
        done = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        states[processes] = json.loads(log.read_text())
    assert (states[1]["world_size"], states[2]["world_size"]) == (1, 2)
    for name in ("loss", "cross_entropy", "consistency", "grad_norm"):
        one, two = ([entry[name] for entry in states[n]["log"] if name in entry] for n in (1, 2))
        assert len(one) == 6
        assert one == pytest.approx(two, rel=1e-4), name
    assert len(set(one)) == 6
