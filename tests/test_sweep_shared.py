"""Several processes on one output: each cell is computed once, whoever dies, and the files are those of one process."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ENVIRONMENT
from tests.test_sweep import stored, sweep, words

N_MASKS = "--n_masks=3,4,5,6,7,8"
# Runs commands in processes that share the imports, which take most of the time; each command's last word is its log.
# The processes of a step with "kill_at" are killed so many seconds after the folder holds so many results.
LAUNCHER = """
import json, os, signal, sys, time
from pathlib import Path
import mdlm_lm_eval.sweep.run
from mdlm_lm_eval.sweep.__main__ import main

def start(words):
    if (child := os.fork()) != 0:
        return child
    *sys.argv[1:], log = words
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(bool(end.code)))

for step in json.loads(sys.stdin.read()):
    children = [start(words) for words in step["commands"]]
    if "kill_at" in step:
        folder, results, seconds = step["kill_at"]
        while len(list(Path(folder).glob("*/tiny*/results_cell.json"))) < results:
            time.sleep(0.01)
        time.sleep(seconds)
        for child in children:
            os.kill(child, signal.SIGKILL)
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
"""


def launch(steps: list[dict[str, Any]]) -> list[str]:
    """Exit codes of each step's processes."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER], input=json.dumps(steps), env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, task_folder: Path) -> dict[str, Any]:
    """What one process writes."""
    output = tmp_path_factory.mktemp("one")
    assert sweep(output, checkpoint, task_folder, N_MASKS, "--limit=1").code == 0
    return stored(output)


def test_two_processes_share_the_cells(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    command = words(tmp_path / "out", checkpoint, task_folder, N_MASKS, "--limit=1")
    logs = [tmp_path / "1.log", tmp_path / "2.log"]
    assert launch([{"commands": [[*command, str(log)] for log in logs]}]) == ["0 0"]
    assert stored(tmp_path / "out") == undisturbed
    ends = [log.read_text().splitlines()[-1] for log in logs]
    assert all("mdlm-sweep: 6 of 6 cells are done" in end for end in ends)
    assert sum(int(end.removesuffix(" by this process").split()[-1]) for end in ends) == 6, "each once"


def test_sweeps_that_are_killed_lose_nothing(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    rng, log = random.Random(0), str(tmp_path / "log")
    command = [*words(tmp_path / "out", checkpoint, task_folder, N_MASKS, "--limit=1"), log]
    kills = [{"commands": [command], "kill_at": [str(tmp_path / "out"), n, rng.uniform(0, 0.5)]} for n in (0, 1, 3)]
    assert launch([*kills, {"commands": [command]}])[-1] == "0"
    assert stored(tmp_path / "out") == undisturbed
    assert not list((tmp_path / "out").rglob("*.unfinished"))


def test_shards_are_parts_of_the_cells_and_status_lists_the_others(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    more = (N_MASKS, "--limit=1")
    nowhere = sweep(tmp_path / "nowhere", checkpoint, task_folder, *more, "--status")
    assert nowhere.out.startswith("6 cells: 0 done, 6 missing, 0 of other settings\n")
    assert not (tmp_path / "nowhere").exists()
    assert sweep(tmp_path, checkpoint, task_folder, *more, "--shard=1/2").code == 0
    assert {path: undisturbed[path] for path in stored(tmp_path)} == stored(tmp_path)
    status = sweep(tmp_path, checkpoint, task_folder, *more, "--status").out.splitlines()
    assert status[0] == "6 cells: 3 done, 3 missing, 0 of other settings"
    assert status[1:] == [f"missing: {checkpoint.name}/tiny_generate,n_masks={n}" for n in (3, 5, 7)]
    assert sweep(tmp_path, checkpoint, task_folder, *more, "--shard=0/2").code == 0
    assert stored(tmp_path) == undisturbed


def test_processes_of_torchrun_share_the_cells(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = words(tmp_path, checkpoint, task_folder, N_MASKS, "--limit=1")
    done = subprocess.run(
        [*start, "-m", "mdlm_lm_eval.sweep", *command], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("mdlm-sweep: 6 of 6 cells are done") == 2
    assert stored(tmp_path) == undisturbed
