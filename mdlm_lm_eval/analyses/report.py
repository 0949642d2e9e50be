"""The files of an analysis: tidy rows as CSV, and JSON with rows, summary, settings and versions."""

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import read_json, write_whole
from mdlm_lm_eval.results.frame import read_folder
from mdlm_lm_eval.results.result_file import ResultFile, read_result_file
from mdlm_lm_eval.results.statistics import interval_over_tasks

Row = dict[str, Any]
_PACKAGES = ("mdlm-lm-eval", "lm-eval", "torch", "transformers", "peft")


def over_tasks(rows: Sequence[Row], value: str, by: list[str]) -> list[Row]:
    """Mean of `value` over tasks, and the half width of its 95% t interval (`band`), for each combination of `by`.

    All tasks have the same weight. The band is None for a single task.
    """
    summary: list[Row] = []
    for _, own in pd.DataFrame(rows).groupby(by):
        means = own.groupby("task", sort=False)[value].mean().to_dict()
        over = interval_over_tasks(means)
        key = {name: own[name].tolist()[0] for name in by}
        summary.append({**key, value: over.mean, "band": over.half_width, "tasks": len(means)})
    return summary


def read_results(paths: Iterable[Path]) -> list[ResultFile]:
    """All result files of `--model mdlm` at or below `paths`. Other files are named on stderr and left out.

    Raises OptionError if there is none.
    """
    found = []
    for path in paths:
        files, left_out = read_folder(path) if path.is_dir() else ([read_result_file(path, path.name)], {})
        left_out |= {file.path: "is no result of --model mdlm" for file in files if not file.mdlm}
        for name, reason in left_out.items():
            print(f"left out {path / name}: {reason}", file=sys.stderr)
        found += [file for file in files if file.mdlm]
    if not found:
        raise OptionError("no result of --model mdlm was found")
    return found


class Report:
    """An analysis in `{folder}/{name}.json` and `.csv`, which are rewritten after every task.

    Raises OptionError if the folder holds the same analysis with other settings.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.name = folder, name
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as it will be read from the file
        self.summary: Mapping[str, Any] = {}
        self.rows: list[Row] = []
        self.finished: list[str] = []  # tasks that are done
        path = self.path(".json")
        if not path.exists():
            return
        stored = read_json(path)
        for key, value in self.settings.items():
            if (before := stored["settings"].get(key)) != value:
                raise OptionError(f"{path} was made with {key}={before}, not {value}; name another --output_path")
        self.rows, self.finished = stored["rows"], stored["finished_tasks"]

    def path(self, suffix: str) -> Path:
        """The path of a file of the analysis."""
        return self.folder / f"{self.name}{suffix}"

    def add(self, task: str, rows: Sequence[Row]) -> None:
        """Adds the rows of a task and writes the files, so that a killed run can continue."""
        self.rows += rows
        self.finished.append(task)
        self.write({})

    def write(self, summary: Mapping[str, Any]) -> None:
        """Writes the files. `summary` is empty until all tasks are done."""
        self.summary = summary
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
        write_whole(self.path(".csv"), pd.DataFrame(self.rows).to_csv(index=False, lineterminator="\n"))
