"""What lm-eval evaluates for each cell."""

import hashlib
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
from lm_eval.api import registry
from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.utils import set_torch_seed

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.suite import content_hash, suite_task
from mdlm_lm_eval.sweep.plan import AUTOREGRESSIVE, Cell, Sweep
from mdlm_lm_eval.tasks.settings import check_metadata
from mdlm_lm_eval.values import did_you_mean

_LM_EVALS_TASKS = Path(str(lm_eval.tasks.__file__)).parent


class Tasks:
    """The tasks of a sweep. lm-eval puts metadata into tasks as they are loaded, so each set of it has its own."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.patterns = sorted({cell.task for cell in sweep.cells})
        self.managers: dict[str, TaskManager] = {}
        self.loaded: dict[str, list[Task | Group]] = {}

    def expand(self, cells: Sequence[Cell]) -> list[Cell]:
        """A cell for every task and group that a name with wildcards stands for.

        Raises OptionError for names that lm-eval does not know.
        """
        manager = self._manager({})
        names = {pattern: manager.match_tasks([pattern]) for pattern in self.patterns}
        for pattern, matches in names.items():
            if not matches:
                hint = did_you_mean(pattern, manager.all_tasks) or "`lm_eval ls tasks` lists them all"
                raise OptionError(f"tasks={pattern}: lm-eval knows no such task or group; {hint}")
        expanded = [replace(cell, task=name) for cell in cells for name in names[cell.task]]
        return list({repr(cell): cell for cell in expanded}.values())

    def to_evaluate(self, cell: Cell) -> list[Task | Group] | list[str]:
        """What `simple_evaluate` takes for a cell. Raises OptionError as `load` does.

        This package's tasks are the same whenever they are loaded. Others may draw random numbers then (GPQA shuffles
        its choices); by their name, lm-eval loads them right after it has set its seeds, as in a process of its own.
        """
        loaded = self.load(cell)
        if all(self._is_ours(cell, name) for name in self.names(cell)):
            return loaded
        _forget_task_files()
        return [cell.task]

    def load(self, cell: Cell) -> list[Task | Group]:
        """A cell's tasks and groups, once for all cells that share them.

        Raises OptionError where they cannot be loaded or have no use for the cell's settings.
        """
        key = repr((cell.task, cell.metadata, cell.num_fewshot))
        if key not in self.loaded:
            check_metadata([cell.task], cell.metadata)
            manager = self.manager(cell)
            # With the seeds of a cell, as `datasets` keeps on disk what tasks make of their documents, for later loads.
            _forget_task_files()
            random.seed(cell.seeds[0])
            np.random.seed(cell.seeds[1])
            set_torch_seed(cell.seeds[2])
            try:
                found = manager.load([cell.task])
            except OptionError:
                raise
            except (OSError, LookupError, TypeError, ValueError) as error:
                raise OptionError(f"{cell.task} cannot be loaded: {one_line(error)}") from error
            if self.sweep.model == AUTOREGRESSIVE and any(map(_has_slots, found["tasks"].values())):
                raise OptionError(f"{cell.task} has its masks in the prompt, which only --model mdlm fills")
            groups = found.get("groups", {})
            self.loaded[key] = [groups[cell.task]] if cell.task in groups else list(found["tasks"].values())
        return self.loaded[key]

    def names(self, cell: Cell) -> list[str]:
        """All tasks of a cell, those of groups one by one."""
        names = []
        for part in self.load(cell):
            names += [task.task_name for task in part.get_all_tasks()] if isinstance(part, Group) else [part.task_name]
        return names

    def states(self, cell: Cell) -> dict[str, dict[str, Any]]:
        """What tells a cell's tasks from former states of theirs: versions, and digests of what the user wrote.

        Tasks of the suite are left out, which has a digest of its own (`suite_info`).
        """
        states: dict[str, dict[str, Any]] = {}
        for part in self.load(cell):
            groups = [part, *part.get_all_groups()] if isinstance(part, Group) else []
            tasks = part.get_all_tasks() if isinstance(part, Group) else [part]
            states |= {task.task_name: {"version": task.VERSION} for task in tasks if not suite_task(task.task_name)}
            for name in [*(group.name for group in groups), *(task.task_name for task in tasks)]:
                entry = self.manager(cell).task_index.get(name)
                if entry is not None and entry.yaml_path is not None and self._is_users(entry.yaml_path):
                    states.setdefault(name, {})["sha256"] = _digest(entry.yaml_path, entry.cfg)
        return states

    def manager(self, cell: Cell) -> TaskManager:
        """The task manager of a cell's metadata."""
        return self._manager(cell.metadata)

    def _manager(self, metadata: Mapping[str, Any]) -> TaskManager:
        # lm-eval too lets tasks see the model arguments.
        metadata = {**self.sweep.model_args, **metadata}
        key = repr(metadata)
        if key not in self.managers:
            self.managers[key] = self._new_manager(metadata)
        return self.managers[key]

    def _is_ours(self, cell: Cell, name: str) -> bool:
        entry = self.manager(cell).task_index.get(name)
        return entry is not None and entry.yaml_path is not None and entry.yaml_path.is_relative_to(tasks_path())

    def _is_users(self, path: Path) -> bool:
        return self.sweep.include_path is not None and path.is_relative_to(self.sweep.include_path)

    def _new_manager(self, metadata: Mapping[str, Any]) -> TaskManager:
        users = [self.sweep.include_path] if self.sweep.include_path else []
        without = TaskManager(include_path=[tasks_path(), *users], include_defaults=False, metadata=dict(metadata))
        if not any(_may_name_lm_evals(pattern, without) for pattern in self.patterns):
            return without  # lm-eval's own thousands of tasks take seconds to index
        return TaskManager(include_path=users or None, metadata=dict(metadata))


def _may_name_lm_evals(pattern: str, without: TaskManager) -> bool:
    """Whether a name or pattern, or a group of the user's that it stands for, may hold tasks that come with lm-eval.

    `without` is the index without those, none of which begins with `mdlm_`.
    """
    if pattern not in without.task_index and not pattern.startswith("mdlm_"):
        return True
    names = without.match_tasks([pattern])
    groups = [without.task_index[name].yaml_path for name in names if name in without.all_groups]
    return not names or not all(path.is_relative_to(tasks_path()) for path in groups)


def _forget_task_files() -> None:
    """Lets the Python files of tasks be imported again: a random generator in them would go on where it was.

    What they have registered goes too, as lm-eval takes no second filter or metric of one name.
    """
    files = {name for name in sys.modules if _is_task_file(name)}
    for name in files:
        del sys.modules[name]
    for registered in (
        registry.filter_registry,
        registry.metric_registry,
        registry.aggregation_registry,
        registry.metric_agg_registry,
    ):
        for name, value in list(registered.items()):
            if getattr(value, "__module__", None) in files:
                del registered._objs[name]


def _is_task_file(module: str) -> bool:
    """Whether lm-eval has imported a module for tasks that are not this package's; users' are named by their path."""
    if module.startswith("lm_eval.tasks."):
        return (_LM_EVALS_TASKS / module.split(".")[2]).is_dir()
    path = Path(module)
    return path.is_absolute() and not path.is_relative_to(tasks_path().resolve())


def _has_slots(task: Task) -> bool:
    return bool((task.get_config("generation_kwargs") or {}).get("infill"))


def _digest(path: Path, content: object) -> str:
    """Of a YAML as lm-eval reads it, with all that it includes, and of the Python files beside it that it names."""
    folder = path.resolve().parent
    text = repr(content)  # functions are paths in it: FOLDER/utils.doc_to_text
    names = re.findall(rf"{re.escape(str(folder))}/([\w./]+)\.\w+", text)
    modules = {f"{name.replace('.', '/')}.py" for name in names}
    parts = text.replace(f"{folder}/", ""), content_hash(folder, modules)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
