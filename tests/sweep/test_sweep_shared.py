"""Several processes on one output, or a Ray cluster: each cell is computed once, whoever dies, into the same files."""

import random
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from mdlm_lm_eval.sweep.claims import Claims
from tests.support.commands import run, start
from tests.sweep.test_sweep import stored, sweep, words

SWEEP = "mdlm_lm_eval.sweep"
N_MASKS = "--n_masks=3,4,5,6"


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
    logs = [tmp_path / "1", tmp_path / "2"]
    for process in [start(SWEEP, *command, log=log) for log in logs]:
        process.join()
        assert process.exitcode == 0
    assert stored(tmp_path / "out") == undisturbed
    ends = [log.with_suffix(".err").read_text().splitlines()[-1] for log in logs]
    assert all("mdlm-sweep: 4 of 4 cells are done" in end for end in ends)
    assert sum(int(end.removesuffix(" by this process").split()[-1]) for end in ends) == 4, "each once"


def test_sweeps_that_are_killed_lose_nothing(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    rng, out = random.Random(0), tmp_path / "out"
    command = words(out, checkpoint, task_folder, N_MASKS, "--limit=1")
    for n_results in (0, 1, 2):
        process = start(SWEEP, *command, log=tmp_path / "log")
        while len(list(out.glob("*/tiny*/results_cell.json"))) < n_results:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.join()
    run(SWEEP, *command)
    assert stored(out) == undisturbed
    assert not list(out.rglob("*.unfinished"))


def test_shards_are_parts_of_the_cells_and_status_lists_the_others(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    more = (N_MASKS, "--limit=1")
    nowhere = sweep(tmp_path / "nowhere", checkpoint, task_folder, *more, "--status")
    assert nowhere.out.startswith("4 cells: 0 done, 4 missing, 0 of other settings\n")
    assert not (tmp_path / "nowhere").exists()
    assert sweep(tmp_path, checkpoint, task_folder, *more, "--shard=1/2").code == 0
    assert {path: undisturbed[path] for path in stored(tmp_path)} == stored(tmp_path)
    status = sweep(tmp_path, checkpoint, task_folder, *more, "--status").out.splitlines()
    assert status[0] == "4 cells: 2 done, 2 missing, 0 of other settings"
    assert status[1:] == [f"missing: {checkpoint.name}/tiny_generate,n_masks={n}" for n in (3, 5)]
    assert sweep(tmp_path, checkpoint, task_folder, *more, "--shard=0/2").code == 0
    assert stored(tmp_path) == undisturbed


def test_processes_of_torchrun_share_the_cells(
    tmp_path: Path, checkpoint: Path, task_folder: Path, undisturbed: dict[str, Any]
) -> None:
    done = run(SWEEP, *words(tmp_path, checkpoint, task_folder, N_MASKS, "--limit=1"), processes=2)
    assert "mdlm-sweep: 4 of 4 cells are done" in done.stderr
    assert stored(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_ray_cluster_writes_the_same_files_also_when_a_worker_is_killed(
    tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two nodes, both on this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mdlm-lm-eval[ray]'")
    from ray.cluster_utils import Cluster

    more = ("--n_masks=3,4", "--n_fillers=0,500", "--limit=1")
    take = Claims.take
    killed: list[Any] = []

    def take_and_kill(claims: Claims) -> Any:
        """Kills one of the workers once a first cell is done."""
        if claims.own and not killed:
            below = psutil.Process().children(recursive=True)
            killed.append(next(process for process in below if "ray::Worker" in "".join(process.cmdline())))
            killed[0].kill()
        return take(claims)

    monkeypatch.setattr(Claims, "take", take_and_kill)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    without = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # a Python process each
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, **without})
    nodes.add_node(num_cpus=1, num_gpus=0)
    try:
        ray_options = ("--executor=ray", f"--address={nodes.address}")
        on_ray = sweep(tmp_path / "ray", checkpoint, task_folder, *more, *ray_options)
        monkeypatch.undo()
        none = sweep(tmp_path / "none", checkpoint, task_folder, *ray_options, "--gpus_per_worker=1")
    finally:
        nodes.shutdown()
    assert on_ray.code == 1
    assert on_ray.err.count("500 tokens after them") >= 2
    assert "mdlm-sweep: 2 of 4 cells are done" in on_ray.err
    assert not ray.is_initialized()
    assert killed
    assert "gpus_per_worker=1: the most on one node of this cluster is 0" in str(none.code) + none.err
    assert sweep(tmp_path / "here", checkpoint, task_folder, *more).code == 1
    assert stored(tmp_path / "ray") == stored(tmp_path / "here")
