"""The cells of a sweep in a folder that several processes may share: each is computed once.

OUTPUT/MODEL/CELL/results_cell.json    a finished cell: its folder appears whole, in one move
OUTPUT/.locks/DIGEST.lock              held by the process that computes a cell; the system frees it when that ends
"""

import hashlib
import json
import math
from collections import deque
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

# lm-eval's readers look for results_*.json; a cell has one result, so no date in the name.
RESULT_FILE = "results_cell.json"
_SHARED = ("model", "gen_kwargs", "limit", "samples", "apply_chat_template", "system_instruction")


class Claims:
    """Which cells are left, and a lock for each.

    left: cells that are not known to be done. failures: why a cell could not be done, by its name. own: how many this
    process did.
    """

    def __init__(self, sweep: Sweep, output: Path) -> None:
        self.sweep, self.output = sweep, output
        self.left = deque(sweep.cells)
        self.failures: dict[str, str] = {}
        self.own = 0
        self._digest, self._suite = cache(checkpoints.files_digest), cache(suite_info)

    def take(self) -> tuple[Cell, FileLock] | None:
        """A cell that is left, and its lock, which the caller releases; None where others hold all of them now."""
        (self.output / ".locks").mkdir(parents=True, exist_ok=True)
        for _ in range(len(self.left)):
            cell = self.left.popleft()
            digest = hashlib.sha256(cell.name.encode()).hexdigest()
            lock = FileLock(self.output / ".locks" / f"{digest[:32]}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.left.append(cell)
                continue
            try:
                if not self.is_finished(cell):
                    return cell, lock
            except OptionError as error:
                self.failures[cell.name] = str(error)
            lock.release()
        return None

    def finish(self, cell: Cell, files: Mapping[str, bytes]) -> None:
        """Puts a cell's files in their place. Its lock must be held."""
        with whole_folder(self.output / cell.name) as unfinished:
            for name, content in files.items():
                (unfinished / name).write_bytes(content)
        self.own += 1

    def settings(self, cell: Cell) -> dict[str, Any]:
        """What decides a cell's scores: its axes, what all cells share, and which weights and questions they were.

        Where the weights lie is not part of it: their digests tell two folders of one name apart.
        """
        arguments = dict(cell.arguments)
        pretrained, adapter = arguments.pop("pretrained", None), arguments.pop("peft", None)
        arguments.pop("plugins", None)
        settings = {name: getattr(self.sweep, name) for name in _SHARED}
        settings |= {
            name: getattr(cell, name)
            for name in ("task", "metadata", "num_fewshot", "repeats", "query_position", "seeds")
        }
        settings |= {
            "fewshot_as_multiturn": None if self.sweep.fewshot_as_multiturn else "false",
            "model_args": arguments,
            "task_suite": self._suite((cell.task,)),
            "weights": pretrained and self._digest(str(pretrained), arguments.get("subfolder") or ""),
            "adapter_weights": adapter and self._digest(adapter),
            "plugins": digests(cell.arguments) or None,
        }
        return dict(json.loads(json.dumps(settings, default=str)))  # as the file will have it

    def is_finished(self, cell: Cell) -> bool:
        """Whether a cell's result is there. One of fewer questions, or without wanted samples, does not count.

        Raises OptionError for a result of other settings or another model, and where anything else is in its place.
        """
        folder = self.output / cell.name
        if not folder.exists():
            return False
        try:
            stored = dict(read_json(folder / RESULT_FILE)["config"]["mdlm_sweep"]["settings"])
        except (UnusableFile, LookupError, TypeError) as error:
            raise OptionError(f"{folder} holds no result of a sweep; move it, or name another --output_path") from error
        settings = self.settings(cell)
        different = [name for name, value in settings.items() if stored.get(name) != value]
        if different == ["limit"] and _covers_more(self.sweep.limit, stored.get("limit")):
            return False
        if different:
            changes = "; ".join(f"{name} was {stored.get(name)} and is {settings[name]}" for name in different)
            raise OptionError(
                f"{folder} holds a result of other settings ({changes}); move it, or name another --output_path"
            )
        return not self.sweep.log_samples or any(folder.glob("samples_*"))


def _covers_more(now: float | None, before: float | None) -> bool:
    """Whether a limit has more questions than another: two numbers of them, or two shares, or now all."""
    now, before = (math.inf if limit is None else limit for limit in (now, before))
    return before < now and (now == math.inf or (before < 1) == (now < 1))
