"""`mdlm-sweep --status FOLDER`: how far the sweeps in a folder are, read from its files alone."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.files import UnusableFile, read_json, write_whole
from mdlm_lm_eval.results.locks import LEASE_SECONDS, Claim
from mdlm_lm_eval.results.privacy import typed_command
from mdlm_lm_eval.sweep.failures import failed_file, read_failure
from mdlm_lm_eval.sweep.results import RESULT_FILE, recorded_settings

_PLANS = ".sweeps"
_MOST_LINES = 40  # of each kind


def write_plan(output: Path, cells: Mapping[Path, dict[str, Any] | str]) -> Path | None:
    """Keeps what a sweep is made of: of each cell's folder its settings, or why it cannot be done.

    The same cells have one plan, whatever their number of questions. Returns its path where there was none.
    """
    by_folder = {folder.relative_to(output).as_posix(): settings for folder, settings in cells.items()}
    content = {
        "command": typed_command("mdlm-sweep"),
        "cells": {name: _digest(settings) for name, settings in by_folder.items() if not isinstance(settings, str)},
        "refused": {name: sentence for name, sentence in by_folder.items() if isinstance(sentence, str)},
    }
    path = output / _PLANS / f"{_digest(sorted(by_folder))}.plan"
    is_new = not path.exists()
    write_whole(path, json.dumps(content, indent=1) + "\n")
    return path if is_new else None


@dataclass
class Status:
    """Of one sweep: cells by what became of them, with what there is to say about each."""

    command: str
    done: list[str] = field(default_factory=list)
    running: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)  # results of other settings
    missing: list[str] = field(default_factory=list)

    def lines(self) -> Iterable[str]:
        """For people."""
        yield self.command
        kinds = {"done": self.done, "running": self.running, "failed": self.failed, "missing": self.missing}
        counts = [f"{len(cells)} {kind}" for kind, cells in kinds.items()]
        counts += [f"{len(self.other)} of other settings"] if self.other else []
        n = sum(map(len, kinds.values())) + len(self.other)
        yield f"{n} cell{'' if n == 1 else 's'}: {', '.join(counts)}"
        yield from _some([f"running: {name}: {holder}" for name, holder in self.running.items()])
        yield from _some([f"failed: {name}: {sentence}" for name, sentence in self.failed.items()])
        yield from _some([f"of other settings: {name}" for name in self.other])
        yield from _some([f"missing: {name}" for name in self.missing])


def status_of(output: Path) -> str:
    """What can be said of every sweep in a folder. Raises OptionError for a folder without one."""
    plans = sorted((output / _PLANS).glob("*.plan"))
    if not plans:
        raise OptionError(f"--status {output}: no sweep has begun there; name its --output_path")
    return "\n\n".join("\n".join(_status(output, plan).lines()) for plan in plans)


def _status(output: Path, plan: Path) -> Status:
    try:
        content = read_json(plan)
        status = Status(content["command"], failed=dict(content["refused"]))
        for name, digest in content["cells"].items():
            folder = output / name
            if (found := _found(folder)) == digest:
                status.done.append(name)
            elif holder := _holder(folder):
                status.running[name] = holder
            elif failure := read_failure(failed_file(folder)):
                status.failed[name] = f"{failure['sentence']} ({failure['by']})"
            else:
                (status.missing if found is None else status.other).append(name)
    except (UnusableFile, LookupError, TypeError, AttributeError) as error:
        raise OptionError(f"--status: {plan} is no plan of a sweep; remove it") from error
    return status


def _found(folder: Path) -> str | None:
    """The digest of the settings of the result that lies there."""
    try:
        return _digest(recorded_settings(read_json(folder / RESULT_FILE)))
    except (UnusableFile, LookupError, TypeError):
        return "unreadable" if folder.exists() else None


def _holder(folder: Path) -> str | None:
    """Who computes a cell, None where nobody does or its process is known to be dead."""
    claim = Claim(folder)
    if (holder := claim.holder) is None:
        return None
    try:
        if claim.take():
            claim.release()
            return None
    except OSError:  # a folder that is only for reading
        pass
    silent = time.time() - (claim.renewed or time.time())
    return holder if silent < 2 * LEASE_SECONDS else f"{holder}, which gave no sign of life for {silent:.0f} s"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]
