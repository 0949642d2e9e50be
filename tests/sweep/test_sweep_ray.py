"""A sweep on a Ray cluster of two nodes, both on this machine."""

from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mdlm-lm-eval[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from mdlm_lm_eval.sweep.claims import Claims  # noqa: E402
from tests.sweep.test_sweep import stored, sweep  # noqa: E402

pytestmark = pytest.mark.slow


def test_the_same_files_as_here_also_when_a_worker_is_killed(
    tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
