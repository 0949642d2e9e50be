"""Writes the suite's task and group files and the tables in its README: `python -m tasks.generate`."""

from collections.abc import Iterator
from pathlib import Path

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
        for rule in WRONG_CATEGORIES:
            for distractor in DISTRACTOR_RULES:
                name = f"mdlm_{rule}_{distractor}{suffix}"
                members.append(name)
                head = (
                    f"include: ../{base}",
                    f"task: {name}",
                    f"task_alias: {name.removeprefix('mdlm_')}",
                    f"tag: mdlm_{rule}",
                )
                own = (f"rule: {rule}", f"distractor: {distractor}", *lines)
                texts[f"{folder}/{name}.yaml"] = "\n".join([*head, *own, ""])
        texts[f"{folder}/{group}.yaml"] = _group(group, members)
    texts["position/mdlm_position.yaml"] = _group("mdlm_position", [f"mdlm_position_pos{p}" for p in POSITIONS])
    texts["locality/mdlm_locality.yaml"] = _group(
        "mdlm_locality", [f"mdlm_locality_{place}_pos{p}" for place in QUESTION_PLACES for p in POSITIONS]
    )
    return texts


def tables() -> str:
    """All groups with their tasks, and all rules, as Markdown."""
    rows = [
        "| group | folder | tasks | format | examples | question |",
        "|---|---|---|---|---|---|",
        "| `mdlm_position` | position | the five groups `mdlm_position_pos*` | | | |",
        "| `mdlm_locality` | locality | the fifteen groups `mdlm_locality_*_pos*` | | | |",
    ]
    for folder, group, base, suffix, lines in _families():
        settings = dict(line.split(": ") for line in lines)
        form = "fixed-slot" if base == "_fixed_slot_yaml" else "open-ended"
        examples = f"block after {settings['position']} distractors" if "position" in settings else "mixed"
        tasks = f"`mdlm_{{rule}}_{{distractor}}{suffix}`"
        rows.append(f"| `{group}` | {folder} | {tasks} | {form} | {examples} | {settings.get('question', 'right')} |")
    rows += ["", "| relevant rule | wrong options come from |", "|---|---|"]
    rows += [f"| {rule} | {', '.join(wrong)} |" for rule, wrong in WRONG_CATEGORIES.items()]
    return "\n".join(["", *rows, "", ""])


def readme(current: str) -> str:
    """The README with its tables renewed."""
    before, _, rest = current.partition(TABLE_START)
    _, _, after = rest.partition(TABLE_END)
    return before + TABLE_START + tables() + TABLE_END + after


def _families() -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    """Folder, group, included file, end of the task names and own lines of each 16 tasks that differ in rules alone."""
    yield "context", "mdlm_context", "_open_ended_yaml", "", ("arrangement: mixed",)
    yield "slot", "mdlm_slot", "_fixed_slot_yaml", "_slot", ("arrangement: mixed",)
    for p in POSITIONS:
        lines = ("arrangement: block", f"position: {p}")
        yield "position", f"mdlm_position_pos{p}", "_open_ended_yaml", f"_pos{p}", lines
    for place in QUESTION_PLACES:
        for p in POSITIONS:
            lines = ("arrangement: block", f"position: {p}", f"question: {place}")
            yield "locality", f"mdlm_locality_{place}_pos{p}", "_fixed_slot_yaml", f"_{place}_pos{p}", lines


def _group(name: str, members: list[str]) -> str:
    return "\n".join(
        ["include: ../_group_yaml", f"group: {name}", "task:", *(f"  - {member}" for member in members), ""]
    )


if __name__ == "__main__":
    for path, text in files().items():
        target = FOLDER / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
    target = FOLDER / "README.md"
    target.write_text(readme(target.read_text(encoding="utf-8")), encoding="utf-8")
