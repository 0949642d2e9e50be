"""The few-shot suite's versions, task names and rules, without building its tasks."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import yaml

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.tasks.rule_sets import PAIRS

SUITE_METRIC = "exact_match,none"
# Percent of `mdlm_rules` that the letters of the examples' words give, without knowing any word (tasks/baselines.py).
SPELLING_ALONE = 59.5
# The suite within the tasks folder; other tasks there have versions of their own.
_TASK_FOLDERS = ("context", "slot", "position", "locality", "rules")
_PYTHON = ("few_shot", "prompts", "questions", "rule_sets", "settings")
_SOURCES = ("words", "_suite_yaml", "_open_ended_yaml", "_fixed_slot_yaml", *(f"{name}.py" for name in _PYTHON))
# Hash of the files -> hash of the first files that made the same questions, so that results of both share a table.
# After a change of code that leaves all questions alone (test_tasks.py and test_tasks_rules.py have their digests),
# replace the key; after any other change, delete the entry and raise the version.
_SAME_QUESTIONS = {
    "4419a39518c28fd8a74a5a2542f6e0e90aa87422c7c11f461d6c92b876d971e8": (
        "b468462d27f728a01877129fb0a0994c6f81c82c4ac37acf365eb817b94ed271"
    ),
}
# Generated groups beside the suite -> the beginnings of the names of their tasks and subgroups.
_GENERATED = {
    "mdlm_parallel": ("mdlm_parallel",),
    "mdlm_infill": ("mdlm_infill",),
    "mdlm_planning": ("mdlm_planning", "mdlm_countdown", "mdlm_sudoku", "mdlm_reversal"),
}
_NAME = re.compile(
    r"mdlm_(?P<rules>rules_)?(?P<task>[a-z]+_[a-z]+?)"
    r"(?P<slot>_slot)?((_(?P<question>left|middle|right))?_pos(?P<position>\d+))?"
)


@dataclass(frozen=True)
class SuiteTask:
    """One task of the suite.

    task: its rule and distractor, which all variants of a task share.
    asks: the family of its questions, mdlm_context or mdlm_rules.
    question: the place of the question; None in open-ended tasks.
    position: the position of the relevant examples; None if they are mixed with the distractors.
    """

    task: str
    asks: str
    is_slot: bool
    question: str | None
    position: int | None

    @property
    def group(self) -> str:
        """The group that this task counts to."""
        start = "mdlm" if self.asks == "mdlm_context" else self.asks
        if self.position is None:
            return f"{start}_slot" if self.is_slot else self.asks
        if self.question is None:
            return f"{start}_position_pos{self.position}"
        return f"{start}_locality_{self.question}_pos{self.position}"

    @property
    def is_open_ended(self) -> bool:
        """Whether masks follow the prompt; else the answer's mask is inside its text."""
        return not self.is_slot and self.question is None


@cache
def task_names() -> frozenset[str]:
    """The rule and distractor of every task, such as `country_smallest`."""
    return frozenset(path.stem.removeprefix("mdlm_") for path in (tasks_path() / "context").glob("mdlm_*_*.yaml"))


@cache
def current_version() -> str:
    """The version of the suite that is installed."""
    return str(yaml.safe_load((tasks_path() / "_suite_yaml").read_text(encoding="utf-8"))["metadata"]["version"])


@cache
def suite_task(name: str) -> SuiteTask | None:
    """The suite's task of this name; None for any other task."""
    match = _NAME.fullmatch(name)
    if match is None or match["task"] not in task_names() or (match["slot"] and match["position"]):
        return None
    position = None if match["position"] is None else int(match["position"])
    asks = "mdlm_rules" if match["rules"] else "mdlm_context"
    return SuiteTask(match["task"], asks, bool(match["slot"]), match["question"], position)


@cache
def generated_group(name: str) -> str:
    """The generated group beside the suite that a task or group counts to, "" for any other."""
    return next((group for group, starts in _GENERATED.items() if name.startswith(starts)), "")


@cache
def cluster_of(task: str) -> str:
    """The word rule of a few-shot task, which several tasks share; the name of any other task."""
    known = suite_task(task if task.startswith("mdlm_") else f"mdlm_{task}")
    return known.task.rpartition("_")[0] if known else task


def related_rules(task: str) -> str:
    """The pair of related rules of a few-shot task, such as "country, capitalised"; the name of any other task."""
    rule = cluster_of(task)
    return next((", ".join(pair) for pair in PAIRS if rule in pair), rule)


def suite_info(names: Iterable[str]) -> dict[str, str]:
    """The few-shot suite's version and content hash; empty if no task of the suite is among `names`.

    The hash is sha256 over the relative names and contents of the files that make the questions, or that of earlier
    files that made the same questions.
    """
    folder = tasks_path()
    if not any((folder / part / f"{name}.yaml").exists() for name in names for part in _TASK_FOLDERS):
        return {}
    digest = hashlib.sha256()
    paths = [path for part in (*_TASK_FOLDERS, *_SOURCES) for path in (folder / part, *(folder / part).rglob("*"))]
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    found = digest.hexdigest()
    return {"version": current_version(), "sha256": _SAME_QUESTIONS.get(found, found)}
