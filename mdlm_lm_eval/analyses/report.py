"""What an analysis writes: tidy rows as CSV, and as JSON with a summary and everything that made them."""

import csv
import io
import json
import platform
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import read_json, write_whole
from mdlm_lm_eval.results.statistics import interval_over_tasks

Row = dict[str, Any]
_PACKAGES = ("mdlm-lm-eval", "lm-eval", "torch", "transformers", "peft")


def over_tasks(rows: Sequence[Row], value: str, by: Sequence[str]) -> list[Row]:
    """Mean of `value` over tasks with the half width of its 95% t interval, for each combination of the columns `by`.

    Every task counts the same. The band is None for a single task.
    """
    per_task: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        per_task[tuple(row[name] for name in by)][row["task"]].append(row[value])
    summary = []
    for key, tasks in per_task.items():
        over = interval_over_tasks({task: fmean(values) for task, values in tasks.items()})
        summary.append({**dict(zip(by, key, strict=True)), value: over.mean, "band": over.half_width, "tasks": over.n})
    return summary


class Report:
    """One analysis on disk, in `{folder}/{name}.json` and `.csv`; the JSON file is rewritten after every task.

    Raises OptionError if the folder holds the same analysis of other settings.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.name = folder, name
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as it will be read back
        self.rows: list[Row] = []
        self.finished: list[str] = []  # tasks whose rows are there
        path = self.path(".json")
        if not path.exists():
            return
        stored = read_json(path)
        for key, value in self.settings.items():
            if stored["settings"].get(key) != value:
                before = stored["settings"].get(key)
                raise OptionError(f"{path} was made with {key}={before}, not {value}; name another --output_path")
        self.rows, self.finished = stored["rows"], stored["finished_tasks"]

    def path(self, suffix: str) -> Path:
        """Of one of the analysis' files."""
        return self.folder / f"{self.name}{suffix}"

    def add(self, task: str, rows: Sequence[Row]) -> None:
        """Keeps a task's rows on disk, for a run that is killed before its end."""
        self.rows += rows
        self.finished.append(task)
        self._write({})

    def write(self, summary: Mapping[str, Any]) -> None:
        """The finished analysis."""
        self._write(summary)
        table = io.StringIO()
        writer = csv.DictWriter(table, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(self.path(".csv"), table.getvalue())

    def _write(self, summary: Mapping[str, Any]) -> None:
        content = {
            "analysis": self.name,
            "command": shlex.join(["mdlm-attribution", *sys.argv[1:]]),
            "settings": self.settings,
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
            "finished_tasks": self.finished,
            "summary": summary,
            "rows": self.rows,
        }
        write_whole(self.path(".json"), json.dumps(content, indent=1) + "\n")
