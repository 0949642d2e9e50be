"""Writes the suite's task and group files and the tables in its README: `python -m mdlm_lm_eval.tasks.generate`."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from . import generated
from .prompts import QUESTION_PLACES
from .questions import DISTRACTOR_RULES, WRONG_CATEGORIES

FOLDER = Path(__file__).parent
POSITIONS = (0, 10, 20, 30, 40)
TABLE_START, TABLE_END = "<!-- tables: written by generate.py -->\n", "<!-- end of tables -->\n"


def files() -> dict[str, str]:
    """Path in the tasks folder -> text of every generated file but the README."""
    texts: dict[str, str] = {}
    for folder, group, base, suffix, lines in _families():
        members = []
        start = "mdlm_rules" if folder == "rules" else "mdlm"
        for rule in WRONG_CATEGORIES:
            for distractor in DISTRACTOR_RULES:
                name = f"{start}_{rule}_{distractor}{suffix}"
                members.append(name)
                head = (
                    f"include: ../{base}",
                    f"task: {name}",
                    f"task_alias: {name.removeprefix('mdlm_')}",
                    f"tag: {start}_{rule}",
                )
                own = (f"rule: {rule}", f"distractor: {distractor}", *lines)
                texts[f"{folder}/{name}.yaml"] = "\n".join([*head, *own, ""])
        texts[f"{folder}/{group}.yaml"] = _group(group, members)
    texts["position/mdlm_position.yaml"] = _group("mdlm_position", [f"mdlm_position_pos{p}" for p in POSITIONS])
    texts["locality/mdlm_locality.yaml"] = _group(
        "mdlm_locality", [f"mdlm_locality_{place}_pos{p}" for place in QUESTION_PLACES for p in POSITIONS]
    )
    texts["rules/mdlm_rules_position.yaml"] = _group(
        "mdlm_rules_position", [f"mdlm_rules_position_pos{p}" for p in POSITIONS]
    )
    return texts | generated.files()


def tables() -> str:
    """All groups with their tasks, and all rules, as Markdown."""
    rows = ["|group|tasks|format|examples|question|", "|---|---|---|---|---|"]
    for folder, group, base, suffix, lines in _families():
        settings = dict(line.split(": ") for line in lines)
        if settings.get("position", "0") != "0":
            continue
        form = "fixed-slot" if base == "_fixed_slot_yaml" else "open-ended"
        examples = "block" if "position" in settings else "mixed"
        tasks = (
            f"mdlm_rules_{{rule}}_{{distractor}}{suffix}"
            if folder == "rules"
            else f"mdlm_{{rule}}_{{distractor}}{suffix}"
        )
        group, tasks = (re.sub("pos0$", "pos{p}", name) for name in (group, tasks))
        rows.append(f"|`{group}`|`{tasks}`|{form}|{examples}|{settings.get('question', 'right')}|")
    rules, distractors = ", ".join(WRONG_CATEGORIES), " or ".join(DISTRACTOR_RULES)
    rows += ["", f"`{{rule}}` is one of {rules}. `{{distractor}}` is {distractors}."]
    return "\n".join(["", *rows, "", ""])


def readme(current: str) -> str:
    """The README with its tables renewed."""
    before, _, rest = current.partition(TABLE_START)
    _, _, after = rest.partition(TABLE_END)
    return before + TABLE_START + tables() + TABLE_END + after


def _families() -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    """Folder, group, included file, end of the task names and own lines of each 16 tasks that differ in rules alone."""
    lines: tuple[str, ...]
    yield "context", "mdlm_context", "_open_ended_yaml", "", ("arrangement: mixed",)
    yield "slot", "mdlm_slot", "_fixed_slot_yaml", "_slot", ("arrangement: mixed",)
    for p in POSITIONS:
        lines = ("arrangement: block", f"position: {p}")
        yield "position", f"mdlm_position_pos{p}", "_open_ended_yaml", f"_pos{p}", lines
    for place in QUESTION_PLACES:
        for p in POSITIONS:
            lines = ("arrangement: block", f"position: {p}", f"question: {place}")
            yield "locality", f"mdlm_locality_{place}_pos{p}", "_fixed_slot_yaml", f"_{place}_pos{p}", lines
    sets = "sets: true"
    yield "rules", "mdlm_rules", "_open_ended_yaml", "", ("arrangement: mixed", sets)
    yield "rules", "mdlm_rules_slot", "_fixed_slot_yaml", "_slot", ("arrangement: mixed", sets)
    for p in POSITIONS:
        lines = ("arrangement: block", f"position: {p}", sets)
        yield "rules", f"mdlm_rules_position_pos{p}", "_open_ended_yaml", f"_pos{p}", lines


def _group(name: str, members: list[str]) -> str:
    suite = yaml.safe_load((FOLDER / "_suite_yaml").read_text(encoding="utf-8"))
    return generated.group_file(name, members, suite["metadata"]["version"])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in files().items():
        target = FOLDER / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
    target = FOLDER / "README.md"
    target.write_text(readme(target.read_text(encoding="utf-8")), encoding="utf-8")
