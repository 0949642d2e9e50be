"""Cells of a sweep in a folder that several processes may share: which are left, how far they are, and their scores.

Each cell is computed once.

OUTPUT/MODEL/CELL/results_cell.json    a finished cell: its folder appears whole, in one move
OUTPUT/MODEL/analyses/ANALYSIS/*       the same of an analysis, with the files of `mdlm-attribution`
OUTPUT/.partial/DIGEST/                an analysis that is not finished, which goes on after its last task
OUTPUT/.locks/DIGEST.lock              held by the process that computes a cell, and released when that process ends
"""

import hashlib
import json
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout
from tqdm import tqdm

from mdlm_lm_eval import __version__, checkpoints
from mdlm_lm_eval.loader import digests
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.plugin import digest_of_own_task
from mdlm_lm_eval.record import digest_of_file
from mdlm_lm_eval.registry import package_digest
from mdlm_lm_eval.results.files import UnusableFile, read_json, whole_folder
from mdlm_lm_eval.results.frame import COSTS, ONE_BLOCK, benchmarks, frame_of, shown_costs
from mdlm_lm_eval.results.names import named
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.statistics import Score, against, pairing
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.results.text import aligned, markdown_table
from mdlm_lm_eval.sweep.plan import RESULT_FILE, Cell, Sweep

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
        self._has_said = False  # that a cell is of another state of this version
        self._digests, self._suite = cache(checkpoints.digests_of_folders), cache(suite_info)
        self._own_task = cache(digest_of_own_task)

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

    def fail_aloud(self, cell: Cell, error: Exception) -> None:
        """As `fail`, and prints the error; with a traceback for errors that are not ours."""
        kind = "" if isinstance(error, OptionError) else f"{type(error).__name__}: "
        self.fail(cell, f"{kind}{error}")
        say(f"failed: {cell.name}: {''.join(traceback.format_exception(error)) if kind else error}")

    def progress_bar(self) -> tqdm:
        """A bar over all cells to compute, including those of other processes; in tokens if these are known."""
        unit = "token" if any(cell.tokens for cell in self.left.values()) else "cell"
        return tqdm(total=self.size, unit=unit, unit_scale=unit == "token", smoothing=0.0, disable=False)

    def settings(self, cell: Cell) -> dict[str, Any]:
        """Everything that decides a cell's scores: its own and the common settings, and digests of models and tasks.

        The path of the weights is left out, because their digest identifies them.
        """
        arguments = dict(cell.arguments)
        pretrained, adapter = arguments.pop("pretrained", None), arguments.pop("peft", None)
        beside = {name: arguments.get(name) for name in ("tokenizer", "subfolder", "revision")}
        arguments.pop("plugins", None)
        settings = {name: getattr(self.sweep, name) for name in _SHARED}
        settings |= {name: getattr(cell, name) for name in _OWN} | {
            "limit": cell.limit,
            "fewshot_as_multiturn": None if self.sweep.fewshot_as_multiturn else "false",
            "model_args": arguments,
            "task_suite": self._suite((cell.task,)),
            "own_task": self._own_task(cell.task, self.sweep.include_path),
            **self._digests(pretrained, adapter, **beside),
            "token_frequencies": digest_of_file(cell.arguments.get("token_frequencies")),
            "plugins": digests(cell.arguments) or None,
            "package_version": __version__ if self.sweep.model.startswith("mdlm") else None,
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
            config = read_json(folder / cell.result_file)["config"]
            made_by, stored = config.get("mdlm") or {}, dict(config["mdlm_sweep"]["settings"])
        except (UnusableFile, LookupError, TypeError) as error:
            raise OptionError(f"{folder} holds no result of a sweep; move it, or name another --output_path") from error
        stored.setdefault("package_version", made_by.get("package_version"))
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
        if made_by.get("package_digest", package_digest()) != package_digest() and not self._has_said:
            self._has_said = True
            say(f"{folder}: another state of mdlm-lm-eval {__version__} computed it; its score stands")
        return not self.sweep.log_samples or cell.analysis is not None or any(folder.glob("samples_*"))

    def status(self) -> str:
        """The number of cells that are done, missing, or of other settings, and a line for each that is not done."""
        found: dict[str, list[str]] = {"done": [], "missing": [], "of other settings": []}
        for cell in self.sweep.cells:
            try:
                state = "done" if self.is_finished(cell) else "missing"
            except OptionError:
                state = "of other settings"
            found[state].append(cell.name)
        counts = ", ".join(f"{len(names)} {state}" for state, names in found.items())
        undone = [f"{state}: {name}" for state, names in found.items() if state != "done" for name in names]
        return "\n".join([f"{len(self.sweep.cells)} cells: {counts}", *undone])


def say(line: str) -> None:
    """Prints a line above the progress bar."""
    tqdm.write(line, file=sys.stderr)


def table(cells: Sequence[Cell], output: Path, baseline: str = "") -> str:
    """A table with a row for each cell: metrics with 95% intervals or differences to a baseline, and costs.

    The baseline of a task is its first cell, or the cell with the words of `baseline`. A cell with several tasks, such
    as a tag, has a row for each. Guests are marked, and cells with blocks that hold all masks.
    """
    files = ((output / cell.name / RESULT_FILE, cell.name) for cell in cells)
    frame = frame_of(read_result_file(path, name) for path, name in files)
    if frame.empty:
        return "no cell is done"
    top = benchmarks(frame)
    beside: dict[Any, str] = {}
    bases: dict[str, list[Score]] = {}  # name of a baseline -> the scores that are compared, its own first
    for _, of_task in top.groupby("task", sort=False):
        base = (named(baseline, of_task["file"]) if baseline else None) or of_task["file"].iloc[0]
        own = of_task[of_task["file"] == base]
        shares = dict(zip(own["metric"], own["share"], strict=True))
        for row in of_task.itertuples():
            if row.file != base and row.share and (first := shares.get(row.metric)):
                beside[row.Index] = f"{row.score:.1f}, {against(first, row.share)}"
                bases.setdefault(base, [first]).append(row.share)
    top["words"] = pd.Series(beside, dtype=object).reindex(top.index).fillna(top["in_words"])
    label = top["file"] + (": " + top["task"]).where(top.groupby("file")["task"].transform("nunique") > 1, "")
    for name, words in {"is_guest": "guest", "is_one_block": ONE_BLOCK}.items():
        label = label + top[name].map({True: f" ({words})", False: ""})
    top["cell"] = label
    first = top.drop_duplicates("cell").set_index("cell")
    metrics, costs = top["metric"].unique(), shown_costs(first)
    words = top.pivot(index="cell", columns="metric", values="words").loc[first.index, metrics].fillna("")
    columns = [first.index, *(words[name] for name in metrics)]
    columns += [first["n"].astype(str), *(aligned(first[name]) for name in costs)]
    heads = ["cell", *(name.removesuffix(",none") for name in metrics), "questions", *(COSTS[name] for name in costs)]
    lines = markdown_table(heads, zip(*columns, strict=True))
    if not bases:
        return lines
    pairs = pairing(one for own in bases.values() for one in own)
    return f"{lines}\n\nDifferences in points are from {', '.join(bases)}, {pairs}."
