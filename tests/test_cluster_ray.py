"""A sweep on a Ray cluster of two nodes, both on this machine."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mdlm-lm-eval[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from mdlm_lm_eval.options import OptionError  # noqa: E402
from mdlm_lm_eval.sweep import ray_cluster  # noqa: E402
from mdlm_lm_eval.sweep.board import Board  # noqa: E402
from mdlm_lm_eval.sweep.plan import plan  # noqa: E402
from mdlm_lm_eval.sweep.ray_executor import RaySweep  # noqa: E402
from mdlm_lm_eval.sweep.ray_options import RayOptions  # noqa: E402
from tests.test_sweep import run_here, stored  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two nodes with one core each."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    nodes.add_node(num_cpus=1, num_gpus=0)
    yield nodes.address
    nodes.shutdown()


def sweep(checkpoint: Path, task_folder: Path, **settings: Any) -> Any:
    common = {"model_args": {"pretrained": str(checkpoint)}, "include_path": str(task_folder), "batch_size": 2}
    return plan(common | {"tasks": "tiny_generate", "device": "cpu", "limit": 1} | settings)


def test_the_same_files_as_here_also_when_a_worker_is_killed(
    cluster: str, tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_ENVIRONMENT", ())  # each set of variables costs a start of processes
    n_masks = [3, 4, 5, 6]
    run = RaySweep(sweep(checkpoint, task_folder, n_masks=n_masks), tmp_path / "ray", RayOptions(cluster))
    finish, killed = Board.finish, []

    def finish_and_kill(self: Board, *arguments: Any) -> None:
        finish(self, *arguments)
        running = [job for job in run._jobs.values() if job.cell is not None]
        if running and not killed:
            killed.append(running[0].cell)
            ray.kill(running[0].worker)

    monkeypatch.setattr(Board, "finish", finish_and_kill)
    run.run()
    assert not run.failures
    assert len(killed) == 1
    assert run.report().summary().startswith("4 of 4 cells are done")
    assert not ray.is_initialized()
    run_here(tmp_path / "here", checkpoint, task_folder, n_masks=n_masks, limit=1)
    assert stored(tmp_path / "ray") == stored(tmp_path / "here")


def test_a_worker_that_cannot_get_a_gpu_is_said(
    cluster: str, tmp_path: Path, checkpoint: Path, task_folder: Path
) -> None:
    run = RaySweep(sweep(checkpoint, task_folder), tmp_path, RayOptions(cluster, gpus_per_worker=1))
    with pytest.raises(OptionError, match="gpus_per_worker=1: this cluster has no GPUs"):
        run.run()


def test_nodes_with_other_packages_are_named(
    cluster: str, tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_versions_here", lambda: {"torch": "1.0"})
    run = RaySweep(sweep(checkpoint, task_folder), tmp_path, RayOptions(cluster))
    with pytest.raises(OptionError, match=r"node \S+ has torch 2\.\S+, and this one torch 1.0; install the same"):
        run.run()


def test_ctrl_c_leaves_no_worker_and_no_claim(
    cluster: str, tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RaySweep(sweep(checkpoint, task_folder, n_masks=[3, 4]), tmp_path, RayOptions(cluster, workers=1))

    def interrupt(self: RaySweep) -> None:
        deal_out(self)
        if self._running():
            raise KeyboardInterrupt

    deal_out = RaySweep._deal_out
    monkeypatch.setattr(ray_cluster, "_ENVIRONMENT", ())
    monkeypatch.setattr(RaySweep, "_deal_out", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert not list(tmp_path.rglob(".*.claim"))
    ray.init(address=cluster, log_to_driver=False)
    states = {actor["State"] for actor in ray._private.state.actors().values()}
    ray.shutdown()
    assert states <= {"DEAD"}


def test_an_address_where_no_cluster_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(OptionError, match=f"--address {address}: no Ray cluster answers there"):
        ray_cluster.connect(address)
    with pytest.raises(OptionError, match="--address nowhere: must be auto or HOST:PORT"):
        ray_cluster.connect("nowhere")


def test_a_model_that_cannot_be_loaded_ends_the_sweep(
    cluster: str, tmp_path: Path, checkpoint: Path, task_folder: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    run = RaySweep(sweep(broken, task_folder), tmp_path / "out", RayOptions(cluster, workers=1))
    with pytest.raises(OptionError, match="broken: its weights cannot be read"):
        run.run()
    assert not (tmp_path / "out" / ".sweeps").exists()
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("each", "one_gpu", "nodes_of_8_and_2"),
    [(0.05, 20, 200), (0.1, 10, 100), (0.2, 5, 50), (0.25, 4, 40), (0.3, 3, 30), (0.7, 1, 10), (1.0, 1, 10)],
)
def test_shares_fill_each_gpu(
    monkeypatch: pytest.MonkeyPatch, each: float, one_gpu: int, nodes_of_8_and_2: int
) -> None:
    assert n_workers(monkeypatch, each, 1) == one_gpu
    assert n_workers(monkeypatch, each, 8, 2) == nodes_of_8_and_2


def test_workers_of_several_gpus_stay_on_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert n_workers(monkeypatch, 2.0, 8, 3) == 5
    assert n_workers(monkeypatch, 3.0, 8, 2) == 2


def n_workers(monkeypatch: pytest.MonkeyPatch, each: float, *gpus: int) -> int:
    nodes = [{"Alive": True, "Resources": {"GPU": float(n)}} for n in gpus]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    return ray_cluster.worker_resources(RayOptions(gpus_per_worker=each))[1]
