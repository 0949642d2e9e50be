"""Runs a sweep on Ray: each GPU, or share of a GPU, has an actor with a loaded model.

Actors return the files of each cell to this process, so nodes need no common folder for results. Other `mdlm-sweep`
processes may work on the same output.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from filelock import FileLock
from ray.actor import ActorHandle
from ray.exceptions import RayError

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.claims import Claims
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.run import Evaluator, Measured, Tasks

_RETRIES = 2  # how often a cell is computed again after its actor died


class Worker(Evaluator):
    """The actor. It resolves relative paths in `folder`, if its node has that folder."""

    def __init__(self, sweep: Sweep, folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)
        super().__init__(sweep, Tasks(sweep), sweep.cells[0])


@contextmanager
def _cluster(
    sweep: Sweep, address: str | None = None, workers: int = 0, gpus_per_worker: float | None = None
) -> Iterator[tuple[int, Any]]:
    """Starts or joins a cluster. Gives the number of workers, and the actor class for each; actors end with the block.

    Raises OptionError if no node has enough GPUs for one worker.
    """
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        gpus = [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]
        each = float(max(gpus) > 0) if gpus_per_worker is None else gpus_per_worker
        if each > max(gpus):
            raise OptionError(f"gpus_per_worker={each:g}: the most on one node of this cluster is {max(gpus):g}")
        n_workers = min(workers or (int(sum(gpus) / each) if each else len(gpus)), len(sweep.cells))
        # Ray restarts an actor that died, and computes its cell again.
        actor = ray.remote(Worker).options(num_cpus=1, num_gpus=each, max_restarts=-1, max_task_retries=_RETRIES)
        yield n_workers, actor
    finally:
        ray.shutdown()


def measure_on_ray(sweep: Sweep, ways: Mapping[str, Cell], **cluster: Any) -> Measured:
    """Measures cells on one worker, as `Evaluator.measure` does. `processes` is the number of workers of a run."""
    with _cluster(sweep, **cluster) as (n_workers, actor):
        found: Measured = ray.get(actor.remote(sweep, os.getcwd()).measure.remote(ways))
        return found._replace(processes=n_workers)


def run_on_ray(claims: Claims, **cluster: Any) -> None:
    """Computes every cell that is left."""
    taken = claims.take()
    if taken is None and not claims.left:
        return
    with _cluster(claims.sweep, **cluster) as (n_workers, actor), claims.progress_bar() as bar:
        started = [actor.remote(claims.sweep, os.getcwd()) for _ in range(n_workers)]
        # Cells go to actors that have started, as the cluster may not have room for all of them yet.
        starting = {worker.__ray_ready__.remote(): worker for worker in started}
        running: dict[ray.ObjectRef, tuple[ActorHandle, Cell, FileLock]] = {}
        idle: list[ActorHandle] = []
        while claims.left:
            while idle and (taken := taken or claims.take()):
                worker, (cell, lock), taken = idle.pop(), taken, None
                running[worker.files.remote(cell, claims.settings(cell))] = worker, cell, lock
            if not starting and not running:
                time.sleep(1)  # other processes compute the cells that are left
                continue
            for reference in ray.wait([*starting, *running], timeout=1)[0]:
                if reference in starting:
                    ray.get(reference)  # raises the error if the weights cannot be read
                    idle.append(starting.pop(reference))
                    continue
                worker, cell, lock = running.pop(reference)
                idle.append(worker)
                try:
                    claims.finish(cell, ray.get(reference))
                except (RayError, OSError) as error:
                    claims.fail_aloud(cell, getattr(error, "cause", None) or error)
                lock.release()
            bar.update(bar.total - claims.size - bar.n)
