"""Why a cell could not be done, beside its place, for the other processes of a sweep and for `--status`."""

import json
from pathlib import Path
from uuid import uuid4

from mdlm_lm_eval.results.files import UnusableFile, read_json, write_whole
from mdlm_lm_eval.results.locks import this_process


def failed_file(folder: Path) -> Path:
    """Where the failure of the cell in `folder` is kept."""
    return folder.with_name(f".{folder.name}.failed")


def write_failure(path: Path, sentence: str) -> None:
    """Replaces that of an earlier attempt; every attempt has a name of its own, so that nobody compares clocks."""
    record = {"sentence": sentence, "by": this_process(), "attempt": uuid4().hex}
    write_whole(path, json.dumps(record) + "\n")


def read_failure(path: Path) -> dict[str, str]:
    """What the last attempt at a cell ended with: `sentence`, `by` and `attempt`; empty where none failed."""
    try:
        record = read_json(path)
        return {name: str(record[name]) for name in ("sentence", "by", "attempt")}
    except (UnusableFile, LookupError, TypeError):
        return {}
