"""lm-eval's task objects, each loaded once for all cells that share it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.sentences import one_line
from mdlm_lm_eval.results.suite import content_hash, suite_task
from mdlm_lm_eval.sweep.plan import AUTOREGRESSIVE, Cell, Sweep
from mdlm_lm_eval.tasks.settings import check_metadata
from mdlm_lm_eval.values import did_you_mean


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

    def load(self, cell: Cell) -> list[Task | Group]:
        """What lm-eval evaluates for a cell. Raises OptionError where the task has no use for the cell's settings."""
        key = repr((cell.task, cell.metadata, cell.num_fewshot))
        if key not in self.loaded:
            check_metadata([cell.task], cell.metadata)
            try:
                found = self.manager(cell).load([cell.task])
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

    def _is_users(self, path: Path) -> bool:
        return self.sweep.include_path is not None and path.is_relative_to(self.sweep.include_path)

    def _new_manager(self, metadata: Mapping[str, Any]) -> TaskManager:
        users = [self.sweep.include_path] if self.sweep.include_path else []
        suite = TaskManager(include_path=[tasks_path(), *users], include_defaults=False, metadata=dict(metadata))
        if all(suite.match_tasks([pattern]) for pattern in self.patterns):
            return suite  # lm-eval's own thousands of tasks take seconds to index
        return TaskManager(include_path=users or None, metadata=dict(metadata))


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
