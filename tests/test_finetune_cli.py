"""The command: killed and resumed, two processes, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RECIPE = Path(__file__).parents[1] / "finetune" / "recipes" / "built-in-ce-tv.yaml"
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SMALL = ["batch_size=2", "n_examples=64", "max_length=200", "lora_rank=4", "evaluation_limit=0"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(n), "response": str(n * n)}) + "\n" for n in range(64)))
    return path


def command(checkpoint: Path, output: Path, *changes: str) -> list[str]:
    changed = [f"pretrained={checkpoint}", f"output={output}", *SMALL, *changes]
    return [sys.executable, "-m", "mdlm_finetune", "--config", str(RECIPE), "--set", *changed]


def test_killed_and_resumed_ends_with_the_undisturbed_weights(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    changes = [f"data={data}", "steps=60", "save_steps=5", "trainer.save_total_limit=100"]
    subprocess.run(command(checkpoint, tmp_path / "whole", *changes), env=ENVIRONMENT, check=True, capture_output=True)
    killed = command(checkpoint, tmp_path / "killed", *changes)
    with subprocess.Popen(killed, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "killed.checkpoints" / "checkpoint-10" / "trainer_state.json").exists():
            assert process.poll() is None, "ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed").exists()
    assert not (tmp_path / "killed.checkpoints" / "checkpoint-60").exists()
    resumed = subprocess.run([*killed, "--resume"], env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert "60/60" in resumed.stderr
    whole, killed_weights = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "killed"))
    for name, weight in whole.items():
        assert torch.equal(weight, killed_weights[name]), name


SCRIPT = """
import json, sys
from pathlib import Path
from mdlm_finetune.options import read_recipe
from mdlm_finetune.run import finetune
trainer = finetune(read_recipe(Path(sys.argv[1]), sys.argv[3:]))
if trainer.is_world_process_zero():
    state = {"world_size": trainer.args.world_size, "log": trainer.state.log_history}
    Path(sys.argv[2]).write_text(json.dumps(state))
"""


def test_two_processes_have_the_losses_of_one(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = {1: [sys.executable], 2: [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]}
    states = {}
    for processes, launcher in launch.items():
        log, output = tmp_path / f"{processes}.json", tmp_path / f"out{processes}"
        changes = [f"pretrained={checkpoint}", f"output={output}", *SMALL, "steps=6", "trainer.logging_steps=1"]
        changes += [f"data={data}", f"batch_size={4 // processes}", "accumulation=2"]
        run = [*launcher, str(script), str(RECIPE), str(log), *changes]
        done = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        states[processes] = json.loads(log.read_text())
    assert (states[1]["world_size"], states[2]["world_size"]) == (1, 2)
    for name in ("loss", "cross_entropy", "consistency", "grad_norm"):
        one, two = ([entry[name] for entry in states[n]["log"] if name in entry] for n in (1, 2))
        assert len(one) == 6
        assert one == pytest.approx(two, rel=1e-4), name
    assert len(set(one)) == 6


def test_bad_input_is_one_sentence(tmp_path: Path, checkpoint: Path) -> None:
    run = command(checkpoint, tmp_path / "adapter", "data=absent.jsonl")
    done = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("mdlm-finetune: data=absent.jsonl: cannot be read")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "adapter").exists()
