"""What an analysis writes: tidy rows as CSV, and as JSON with a summary and everything that made them."""

import csv
import io
import json
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import UnusableFile, read_json, write_whole
from mdlm_lm_eval.results.locks import claim
from mdlm_lm_eval.results.privacy import published, typed_command
from mdlm_lm_eval.results.statistics import t_interval

Row = dict[str, Any]
_SECONDS_TO_ADD = 600.0  # others hold the file for as long as it takes to write it


def over_tasks(rows: Sequence[Row], value: str, by: Sequence[str]) -> list[Row]:
    """Mean of `value` over tasks with the half width of its 95% t interval, for each combination of the columns `by`.

    Every task counts the same. The band is None for a single task.
    """
    per_task: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        per_task[tuple(row[name] for name in by)][row["task"]].append(row[value])
    summary = []
    for key, tasks in per_task.items():
        over = t_interval([fmean(values) for values in tasks.values()])
        summary.append({**dict(zip(by, key, strict=True)), value: over.mean, "band": over.half_width, "tasks": over.n})
    return summary


class Report:
    """One analysis on disk, in `{folder}/{name}.json` and `.csv`, rewritten as its rows come in.

    Several processes may work on one; `own` are the tasks that this one has added.
    Raises OptionError where the folder holds the same analysis of other settings.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.name = folder, name
        # As it will be read back, so that a list equals a tuple.
        self.settings: dict[str, Any] = published(json.loads(json.dumps(settings)))
        self.rows: list[Row] = []
        self.finished: list[str] = []  # tasks whose rows are there
        self.own: list[str] = []
        self._continue()

    def path(self, suffix: str) -> Path:
        """Of one of the analysis' files."""
        return self.folder / f"{self.name}{suffix}"

    def has(self, task: str) -> bool:
        """Whether a task's rows are there, from whatever process."""
        if task not in self.finished:
            self._continue()
        return task in self.finished

    def task_path(self, task: str) -> Path:
        """What a process claims to work on a task."""
        return self.folder / f"{self.name}.{task}"

    def add(self, task: str, rows: Sequence[Row]) -> None:
        """Keeps a task's rows on disk, beside those of other processes and for a run that is killed before its end."""
        with claim(self.path(".json"), wait=_SECONDS_TO_ADD):
            self._continue()
            if task in self.finished:  # by another that took it over while this process was suspended
                return
            self.rows += rows
            self.finished.append(task)
            self._write({})
        self.own.append(task)

    def sort(self, tasks: Sequence[str]) -> None:
        """Puts rows into the order of `tasks`, whoever added them when."""
        self.finished.sort(key=tasks.index)
        self.rows.sort(key=lambda row: tasks.index(row["task"]))

    def write(self, summary: Mapping[str, Any]) -> None:
        """The finished analysis."""
        self._write(summary)
        table = io.StringIO()
        writer = csv.DictWriter(table, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(self.path(".csv"), table.getvalue())

    def _continue(self) -> None:
        """Reads what is there."""
        path = self.path(".json")
        if not path.exists():
            return
        try:
            stored = read_json(path)
            settings, self.rows, self.finished = dict(stored["settings"]), stored["rows"], stored["finished_tasks"]
        except (UnusableFile, LookupError, TypeError, ValueError) as error:
            raise OptionError(f"{path} is in the way: it is no result of this analysis; name another folder") from error
        for name, value in self.settings.items():
            if published(settings.get(name)) != value:
                raise OptionError(
                    f"{path} is in the way: it was made with {name}={settings.get(name)}, not {value}; name another "
                    "--output_path"
                )

    def _write(self, summary: Mapping[str, Any]) -> None:
        content = {
            "analysis": self.name,
            "command": typed_command("mdlm-attribution"),
            "settings": self.settings,
            "versions": _versions(),
            "finished_tasks": self.finished,
            "summary": summary,
            "rows": self.rows,
        }
        write_whole(self.path(".json"), json.dumps(content, indent=1) + "\n")


def _versions() -> dict[str, str]:
    packages = ("mdlm-lm-eval", "lm-eval", "torch", "transformers", "peft")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
