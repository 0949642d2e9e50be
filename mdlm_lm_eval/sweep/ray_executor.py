"""Runs a sweep on Ray: each GPU, or share of a GPU, has an actor with a loaded model.

Actors return the files of each cell to this process, so nodes need no common folder for results. Other `mdlm-sweep`
processes may work on the same output.
"""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import ray
from filelock import FileLock
from ray.actor import ActorHandle
from ray.exceptions import RayError

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.claims import Claims
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.run import Evaluator, Measured, Tasks, fail, progress_bar, show_progress

_RETRIES = 2  # how often a cell is computed again after its actor died


class Worker(Evaluator):
    """The actor. It resolves relative paths in `folder`, if its node has that folder."""

    def __init__(self, sweep: Sweep, folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)
        super().__init__(sweep, Tasks(sweep), sweep.cells[0])


def measure_on_ray(
    sweep: Sweep, ways: Mapping[str, Cell], address: str | None = None, workers: int = 0, **each: float | None
) -> Measured:
    """Measures cells on one worker, as `Evaluator.measure` does. `processes` is the number of workers of a run."""
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        n_workers, options = _workers(sweep, workers, **each)
        worker = ray.remote(Worker).options(**options).remote(sweep, os.getcwd())
        found: Measured = ray.get(worker.measure.remote(ways))
        return found._replace(processes=n_workers)
    finally:
        ray.shutdown()


def run_on_ray(
    sweep: Sweep, claims: Claims, address: str | None = None, workers: int = 0, gpus_per_worker: float | None = None
) -> None:
    """Computes every cell that is left. Raises OptionError if no node has enough GPUs for one worker."""
    taken = claims.take()
    if taken is None and not claims.left:
        return
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        n_workers, options = _workers(sweep, workers, gpus_per_worker)
        actor = ray.remote(Worker).options(**options)
        started = [actor.remote(sweep, os.getcwd()) for _ in range(n_workers)]
        # Cells go to actors that have started, as the cluster may not have room for all of them yet.
        starting = {worker.__ray_ready__.remote(): worker for worker in started}
        running: dict[ray.ObjectRef, tuple[ActorHandle, Cell, FileLock]] = {}
        idle: list[ActorHandle] = []
        with progress_bar([*claims.left, *([taken[0]] if taken else [])]) as bar:
            while taken or claims.left or running:
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
                        fail(claims, cell, getattr(error, "cause", None) or error)
                    lock.release()
                waiting = [taken[0]] if taken else []
                show_progress(bar, [*claims.left, *waiting, *(cell for _, cell, _ in running.values())])
    finally:
        ray.shutdown()  # ends the actors


def _workers(sweep: Sweep, workers: int, gpus_per_worker: float | None = None) -> tuple[int, dict[str, Any]]:
    """The number of workers of the cluster, and the options of each."""
    gpus = [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]
    each = float(max(gpus) > 0) if gpus_per_worker is None else gpus_per_worker
    if each > max(gpus):
        raise OptionError(f"gpus_per_worker={each:g}: the most on one node of this cluster is {max(gpus):g}")
    n_workers = min(workers or (int(sum(gpus) / each) if each else len(gpus)), len(sweep.cells))
    # Ray restarts an actor that died, and computes its cell again.
    return n_workers, {"num_cpus": 1, "num_gpus": each, "max_restarts": -1, "max_task_retries": _RETRIES}
