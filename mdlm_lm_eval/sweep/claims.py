"""Cells of a sweep in a folder that several processes may share. Each cell is computed once.

OUTPUT/MODEL/CELL/results_cell.json    a finished cell: its folder appears whole, in one move
OUTPUT/MODEL/analyses/ANALYSIS/*       the same of an analysis, with the files of `mdlm-attribution`
OUTPUT/.partial/DIGEST/                an analysis that is not finished, which goes on after its last task
OUTPUT/.locks/DIGEST.lock              held by the process that computes a cell, and released when that process ends
"""

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mdlm_lm_eval import checkpoints
from mdlm_lm_eval.loader import digests
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import UnusableFile, read_json, whole_folder
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.sweep.plan import Cell, Sweep

# Settings of the sweep and of a cell that are recorded as they are.
_SHARED = ("model", "gen_kwargs", "samples", "apply_chat_template", "system_instruction")
_OWN = ("task", "metadata", "num_fewshot", "repeats", "query_position", "seeds", "analysis")


def lock_of(output: Path, name: str) -> FileLock:
    """The lock of a cell, or of something else that one process writes."""
    (output / ".locks").mkdir(parents=True, exist_ok=True)
    return FileLock(output / ".locks" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock")


class Claims:
    """The cells that are left to compute, with a lock for each.

    left: cells that are neither known to be done nor failed, by name. failures: why cells failed, by name. own: number
    of cells that this process computed.
    """

    def __init__(self, sweep: Sweep, output: Path) -> None:
        self.sweep, self.output, self.partial = sweep, output, output / ".partial"
        self.left = {cell.name: cell for cell in sweep.cells}
        self.failures: dict[str, str] = {}
        self.own = 0
        self._digest, self._suite = cache(checkpoints.files_digest), cache(suite_info)

    @property
    def size(self) -> int:
        """The size of the cells that are left, in tokens if these are known."""
        return sum(cell.tokens or 1 for cell in self.left.values())

    def take(self) -> tuple[Cell, FileLock] | None:
        """A cell that is left, and its lock, which the caller releases. None if all of them are locked."""
        for cell in [*self.left.values()]:
            lock = lock_of(self.output, cell.name)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.left[cell.name] = self.left.pop(cell.name)  # its turn comes last
                continue
            try:
                if not self.is_finished(cell):
                    return cell, lock
                del self.left[cell.name]
            except OptionError as error:
                self.fail(cell, str(error))
            lock.release()
        return None

    def finish(self, cell: Cell, files: Mapping[str, bytes]) -> None:
        """Writes the files of a cell. The caller must hold its lock."""
        with whole_folder(self.output / cell.name) as unfinished:
            for name, content in files.items():
                (unfinished / name).write_bytes(content)
        self.own += 1
        del self.left[cell.name]

    def fail(self, cell: Cell, why: str) -> None:
        """Records why a cell failed. This process does not take it again."""
        self.failures[cell.name] = why
        del self.left[cell.name]

    def settings(self, cell: Cell) -> dict[str, Any]:
        """Everything that decides a cell's scores: its own and the common settings, and digests of weights and tasks.

        The path of the weights is left out, because their digest identifies them.
        """
        arguments = dict(cell.arguments)
        pretrained, adapter = arguments.pop("pretrained", None), arguments.pop("peft", None)
        arguments.pop("plugins", None)
        settings = {name: getattr(self.sweep, name) for name in _SHARED}
        settings |= {name: getattr(cell, name) for name in _OWN} | {
            "limit": cell.limit,
            "fewshot_as_multiturn": None if self.sweep.fewshot_as_multiturn else "false",
            "model_args": arguments,
            "task_suite": self._suite((cell.task,)),
            "weights": pretrained and self._digest(str(pretrained), arguments.get("subfolder") or ""),
            "adapter_weights": adapter and self._digest(adapter),
            "plugins": digests(cell.arguments) or None,
        }
        return dict(json.loads(json.dumps(settings, default=str)))  # as it will be read from the file

    def is_finished(self, cell: Cell) -> bool:
        """Whether a cell's result exists. A result of fewer questions, or without wanted samples, does not count.

        One with more questions than a plan wants does.

        Raises OptionError if the folder holds a result of other settings or of another model, or something else.
        """
        folder = self.output / cell.name
        if not folder.exists():
            return False
        try:
            stored = dict(read_json(folder / cell.result_file)["config"]["mdlm_sweep"]["settings"])
        except (UnusableFile, LookupError, TypeError) as error:
            raise OptionError(f"{folder} holds no result of a sweep; move it, or name another --output_path") from error
        settings = self.settings(cell)
        different = [name for name, value in settings.items() if stored.get(name) != value]
        now, before = (math.inf if limit is None else limit for limit in (settings["limit"], stored.get("limit")))
        # A share below 1 is only compared with a share or with all.
        if different == ["limit"] and before < now and (now == math.inf or (before < 1) == (now < 1)):
            return False
        if different and not (different == ["limit"] and self.sweep.study):
            changes = "; ".join(f"{name} was {stored.get(name)} and is {settings[name]}" for name in different)
            raise OptionError(
                f"{folder} holds a result of other settings ({changes}); move it, or name another --output_path"
            )
        return not self.sweep.log_samples or cell.analysis is not None or any(folder.glob("samples_*"))
