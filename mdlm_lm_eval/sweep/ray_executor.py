"""A sweep on a Ray cluster: workers each hold the model and compute; this process claims, deals out and writes cells.

Results come back to this process, so that the nodes need not share a disk, and plain `mdlm-sweep` processes may work on
the same output.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.locks import Claim
from mdlm_lm_eval.sweep.board import Board
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.ray_cluster import check_nodes, connect, worker_resources
from mdlm_lm_eval.sweep.ray_options import RayOptions
from mdlm_lm_eval.sweep.ray_worker import Worker
from mdlm_lm_eval.sweep.report import SweepReport
from mdlm_lm_eval.sweep.runner import announce, progress_bar, say, show_progress
from mdlm_lm_eval.sweep.tasks import Tasks

MOST_DEATHS = 3  # of workers on one cell, before the cell is given up
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_UNTIL_A_WORD = 30.0  # about workers that do not start


@dataclass
class _Job:
    """What a worker does now; without a cell it reads the weights."""

    worker: ActorHandle
    cell: Cell | None = None
    claim: Claim | None = None


class RaySweep:
    """A sweep at work on a cluster. `failures` holds one sentence for every cell that could not be done.

    Raises OptionError for tasks that lm-eval does not know.
    """

    def __init__(self, sweep: Sweep, output: Path, options: RayOptions) -> None:
        self.options = options
        self.tasks = Tasks(sweep)
        self.sweep = replace(sweep, cells=tuple(self.tasks.expand(sweep.cells)))
        self.board = Board(self.sweep, self.tasks, output)
        self.seconds: dict[str, float] = {}
        self._jobs: dict[ray.ObjectRef, _Job] = {}
        self._idle: list[ActorHandle] = []
        self._adapters: dict[ActorHandle, str | None] = {}  # what each worker has loaded
        self._deaths: Counter[str] = Counter()

    def run(self) -> None:
        """Computes every cell that nobody has done, and returns when all are done or have failed.

        Raises OptionError where there is no cluster, its nodes have other packages than this one, no node has what a
        worker needs, or the model cannot be loaded.
        """
        announce(self.board)
        if not self.board.shared:
            return
        connect(self.options.address)
        try:
            check_nodes()
            self._start_worker = self._workers_starter()
            with progress_bar(self.board) as bar:
                self._compute(bar)
            self.board.clear_claims()
        finally:
            for job in self._jobs.values():
                if job.claim is not None:
                    job.claim.release()
            for worker in [*self._adapters]:
                ray.kill(worker)
            ray.shutdown()

    @property
    def failures(self) -> list[str]:
        """One sentence for every cell that could not be done, by anybody."""
        return [f"{name}: {sentence}" for name, sentence in self.board.failures.items()]

    def report(self) -> SweepReport:
        """What was found."""
        return SweepReport(self.board, self.seconds)

    def _workers_starter(self) -> Callable[[], None]:
        """What starts a worker; the first ones have been started."""
        resources, workers = worker_resources(self.options)
        actor = ray.remote(Worker).options(**resources)
        first = self.board.shared.items()[0].peft
        folder = str(Path.cwd())

        def start() -> None:
            worker = actor.remote(self.sweep, folder)
            self._adapters[worker] = first
            self._jobs[worker.load.remote(first)] = _Job(worker)

        for _ in range(min(workers, len(self.board.shared))):
            start()
        return start

    def _compute(self, bar: Any) -> None:
        started, has_started = time.monotonic(), False
        while len(self.board.shared) or self._running():
            self._deal_out()
            # Nothing to wait for where others hold all cells that are left.
            done = ray.wait([*self._jobs], timeout=_SECONDS_BETWEEN_LOOKS)[0] if self._jobs else []
            if not done and not self._jobs:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            for reference in done:
                self._settle(reference)
                has_started = True
            if not has_started and time.monotonic() - started > _SECONDS_UNTIL_A_WORD:
                say("no worker has begun yet: others may use what the cluster has; `ray status` says more")
                has_started = True
            show_progress(bar, self.board, self._running())

    def _running(self) -> list[Cell]:
        return [job.cell for job in self._jobs.values() if job.cell is not None]

    def _deal_out(self) -> None:
        """A cell for every worker that has none, of those that share its adapter first."""
        for worker in list(self._idle):
            adapter = self._adapters[worker]
            taken = self.board.shared.take(lambda cell, adapter=adapter: cell.peft == adapter)  # type: ignore[misc]
            if taken is None:
                return
            cell, claim = taken
            self._idle.remove(worker)
            self._adapters[worker] = cell.peft
            settings = self.board.settings[self.board.name(cell)]
            self._jobs[worker.evaluate.remote(cell, settings)] = _Job(worker, cell, claim)

    def _settle(self, reference: ray.ObjectRef) -> None:
        """Takes in what a worker has done, or its death."""
        job = self._jobs.pop(reference)
        try:
            found = ray.get(reference)
            self._idle.append(job.worker)
            if job.cell is not None and job.claim is not None:
                scores, write = found
                self.board.finish(job.cell, job.claim, write)
                say(f"{self.board.name(job.cell)}: {scores}")
        except RayActorError as error:
            self._replace(job, error)
        except RayTaskError as error:
            if job.cell is None:
                self.board.withdraw()
                raise OptionError(str(error.cause)) from error
            self._idle.append(job.worker)
            self._fail(job.cell, error.cause if isinstance(error.cause, Exception) else error)
        except OSError as error:  # while writing
            if job.cell is not None:
                self._fail(job.cell, error)
        finally:
            if job.claim is not None:
                job.claim.release()

    def _replace(self, job: _Job, error: RayActorError) -> None:
        """Starts a worker for one that died, and leaves its cell to any."""
        del self._adapters[job.worker]
        name = "the model" if job.cell is None else self.board.name(job.cell)
        self._deaths[name] += 1
        if self._deaths[name] < MOST_DEATHS:
            say(f"a worker died; {name} is tried again by another")
            if job.cell is not None and job.claim is not None:
                self.board.shared.put_back(job.cell, job.claim)
        else:
            sentence = f"its worker died {MOST_DEATHS} times, which lack of memory can do: {error}"
            if job.cell is None:
                raise OptionError(f"the model cannot be loaded: {sentence}") from error
            self._fail(job.cell, OptionError(sentence))
        self._start_worker()

    def _fail(self, cell: Cell, error: Exception) -> None:
        say(f"failed: {self.board.name(cell)}: {self.board.fail(cell, error)}")
