"""The figures of the docs about the built-in model and its adapters are those of the committed result files.

A failing test shows the lines that the document should hold.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mdlm_leaderboard.board import Curve, Row, change
from mdlm_leaderboard.build import read_board
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.statistics import Interval, paired_interval

ROOT = Path(__file__).parents[1]
MASKS = (1, 2, 10, 50, 100, 200)
RECIPES = {"built-in-ce-tv": "MA (CE + TV)", "built-in-ce": "MA (CE only)", "built-in-sft": "SFT"}
WITH_40_STEPS = {"before": "", "CE + TV": "MA (CE + TV)", "CE only": "MA (CE only)"}


@cache
def rows() -> dict[tuple[str, str, str, float | None], Row]:
    """Of version 0.2's model, by model, recipe, steps and limit."""
    board = read_board(ROOT / "leaderboard/suite-2.0")
    return {
        (row.who.model, row.who.recipe, row.who.steps, section.setting.limit): row
        for section in board.sections
        for row in section.rows
    }


def row(recipe: str = "", steps: int = 1, limit: float | None = None, model: str = "built-in") -> Row:
    return rows()[model, recipe, str(steps), limit]


def masks(recipe: str = "", steps: int = 1, limit: float | None = None) -> Curve:
    return row(recipe, steps, limit).curve("masks")


def percent(curve: Curve, x: int) -> str:
    return f"{100 * curve[x].mean:.1f}" if x in curve else ""


def lost(curve: Curve, few: int = 2, many: int = 200) -> str:
    found = change(curve, few, many)
    assert found
    return found.in_words


def gain(first: Curve, second: Curve, x: int) -> str:
    """`second - first` at x masks, dots or distractors, in points."""
    return (
        paired_interval(first[x].by_task, second[x].by_task).scaled(100).in_words
        if {x} <= first.keys() & second.keys()
        else ""
    )


def lost_more(first: Curve, second: Curve) -> Interval:
    """Points by which `second` loses more than `first`, from 2 to 200 masks."""
    losses = [
        {task: curve[2].by_task[task] - curve[200].by_task[task] for task in curve[2].by_task}
        for curve in (first, second)
    ]
    return paired_interval(*losses).scaled(100)


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def missing(document: str, expected: Iterable[str]) -> list[str]:
    """What the document does not hold, whatever its line breaks."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    return [sentence for sentence in expected if sentence not in text]


def test_fine_tuning_tables() -> None:
    before = masks()
    expected = [line("before", *(percent(before, n) for n in MASKS), lost(before))]
    for name, recipe in RECIPES.items():
        after, seeds = masks(recipe), [seed.curve("masks") for seed in row(recipe).seeds]
        expected.append(line(f"`{name}`, mean of 3 seeds", *(percent(after, n) for n in MASKS), lost(after)))
        expected.append(line("... gain", *(gain(before, after, n) for n in MASKS), ""))
        few, many = (", ".join(percent(curve, n) for curve in seeds) for n in (2, 200))
        expected.append(line(f"`{name}`", few, many, ", ".join(map(lost, seeds))))
    ce_tv, ce, sft = (masks(recipe) for recipe in RECIPES.values())
    expected += [
        f"{lost_more(ce_tv, sft).in_words} points less than plain fine-tuning",
        f"{lost_more(ce_tv, ce).in_words} points less",
    ]
    assert missing("leaderboard/suite-2.0/README.md", expected) == []
    losses = [lost(masks(recipe)) for recipe in RECIPES.values()]
    others = f"CE only {losses[1]}, and plain fine-tuning (`sft`) on half as many sequences {losses[2]}"
    assert missing("finetune/README.md", [f"left {losses[0]} of them, {others}"]) == []


def test_other_tables_of_version_0_2() -> None:
    expected = []
    for name, recipe in WITH_40_STEPS.items():
        dots = row(recipe).curve("dots")
        expected.append(line(name, percent(dots, 0), percent(dots, 200), lost(dots, 0, 200)))
    for name, recipe in (("", ""), ("CE + TV: ", "MA (CE + TV)"), ("CE only: ", "MA (CE only)")):
        for n in (2, 200):
            curve = row(recipe).curve("positions_by_masks", n)
            expected.append(line(f"{name}{n} masks", *(percent(curve, place) for place in curve), lost(curve, 40, 0)))
        for steps in (1, 2):
            by_steps = masks(recipe, steps)
            label = f"{name}{'one step' if steps == 1 else 'two steps'}"
            expected.append(line(label, percent(by_steps, 2), percent(by_steps, 200), lost(by_steps)))
    for name, recipe in WITH_40_STEPS.items():
        many = masks(recipe, 40, 50)
        expected.append(line(name, percent(many, 50), percent(many, 200), lost(many, 50, 200)))
    block = row(limit=50, model="built-in-block").curve("masks")
    expected.append(line("accuracy", percent(block, 2), percent(block, 200)))
    assert missing("leaderboard/suite-2.0/README.md", expected) == []


@cache
def of_suite_2_1() -> dict[str, Row]:
    """The built-in model's row of each family of questions: the first 100 of each task."""
    sections = read_board(ROOT / "leaderboard/results").sections
    standard = [one for one in sections if one.setting.fewshot_relevant == 10 and one.setting.limit == 100]
    return {section.setting.asks: section.rows[0] for section in standard}


def test_the_built_in_model() -> None:
    expected = []
    for name, found in of_suite_2_1().items():
        by_masks, dots, relevant = found.curve("masks"), found.curve("dots"), found.curve("relevant", 2)
        expected += [
            line(f"`{name}`", percent(relevant, 0), percent(relevant, 10), gain_of_examples(relevant)),
            line(f"`{name}`", *(percent(by_masks, n) for n in MASKS), lost(by_masks)),
            line(f"`{name}`", percent(dots, 0), percent(dots, 200), lost(dots, 0, 200)),
        ]
    without = {
        "open-ended, 2 masks before": "mdlm_rules,n_masks=2,steps=1",
        "fixed slot": "mdlm_rules_slot,steps=1,n_fillers=0",
    }
    fillers = {
        "open-ended, 2 masks before": ("mdlm_rules,n_masks=200,steps=1", "mdlm_rules,n_masks=2,steps=1,n_fillers=200"),
        "fixed slot": ("mdlm_rules_slot,n_masks=200,steps=1", "mdlm_rules_slot,steps=1,n_fillers=200"),
    }
    for form, cells in fillers.items():
        costs = [paired_interval(scores(cell), scores(without[form])).scaled(100).in_words for cell in cells]
        expected.append(line(form, *costs))
    assert missing("docs/built_in_model.md", expected) == []


def scores(cell: str) -> dict[str, float]:
    """Accuracy by task of a cell of the committed sweep."""
    file = read_result_file(ROOT / "leaderboard/results/built-in" / cell / "results_cell.json")
    return {name.replace("_slot", ""): task.metrics["exact_match,none"] for name, task in file.tasks.items()}


def gain_of_examples(curve: Curve) -> str:
    return paired_interval(curve[0].by_task, curve[10].by_task).scaled(100).in_words


def test_readme() -> None:
    rules = of_suite_2_1()["mdlm_rules"]
    by_masks, dots = rules.curve("masks"), rules.curve("dots")
    without = percent(rules.curve("relevant", 2), 0)
    expected = [
        f"the model scores {percent(by_masks, 2)}% with `n_masks=2`, {without}% without the relevant examples, and",
        f"{percent(by_masks, 200)}% with 200 masks: masks cost it {lost(by_masks)} points, 200 dots",
        f"dots {lost(dots, 0, 200)}, which is not significant (95%)",
    ]
    assert missing("README.md", expected) == []
