"""The figures of the docs about the built-in model and its adapters are those of the committed result files.

A failing test shows the lines that the document should hold.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from mdlm_leaderboard.build import read_board
from mdlm_leaderboard.experiments import difference
from mdlm_leaderboard.rows import Curve, Estimate, LeaderboardRow
from mdlm_leaderboard.seeds import folded, seeds_of
from mdlm_lm_eval.results.statistics import Interval, paired_interval

ROOT = Path(__file__).parents[1]
MASKS = (1, 2, 10, 50, 100, 200)
CE_TV, CE, SFT = (f"{recipe}, mean of 3 seeds" for recipe in ("MA (CE + TV)", "MA (CE only)", "SFT"))
RECIPES = {"built-in-ce-tv": CE_TV, "built-in-ce": CE, "built-in-sft": SFT}
WITH_40_STEPS = {"before": None, "CE + TV": CE_TV, "CE only": CE}


@cache
def rows(limit: int | None) -> tuple[LeaderboardRow, ...]:
    board = read_board(ROOT / "leaderboard/results")
    return tuple(folded(row for row in board.rows if row.origin == "measured" and row.setting.limit == limit))


def row(
    adapter: str | None = None, steps: int = 1, limit: int | None = None, model: str = "built-in"
) -> LeaderboardRow:
    (found,) = (one for one in rows(limit) if (one.model, one.adapter, one.steps) == (model, adapter, str(steps)))
    return found


def masks(adapter: str | None = None, steps: int = 1, limit: int | None = None) -> Curve:
    return row(adapter, steps, limit).curve("masks")


def percent(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f}"


def words(first: Estimate, second: Estimate) -> str:
    """`second - first` in points with its band."""
    return difference(first, second).scaled(100).in_words


def lost(curve: Curve, few: int = 2, many: int = 200) -> str:
    return words(curve[many], curve[few])


def lost_by_task(curve: Curve, few: int = 2, many: int = 200) -> Mapping[str, float]:
    return {task: curve[few].by_task[task] - curve[many].by_task[task] for task in curve[many].by_task}


def lost_more(first: Curve, second: Curve) -> Interval:
    """Points by which `second` loses more than `first`."""
    return paired_interval(lost_by_task(first), lost_by_task(second)).scaled(100)


def lost_more_by_seed(first: str, second: str) -> str:
    seeds = zip(*(seeds_of(row(adapter)) for adapter in (first, second)), strict=True)
    return ", ".join(f"{lost_more(less.curve('masks'), more.curve('masks')).mean:.1f}" for less, more in seeds)


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def missing(document: str, expected: Iterable[str]) -> list[str]:
    """What the document does not hold, whatever its line breaks."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    return [sentence for sentence in expected if sentence not in text]


def test_fine_tuning_table() -> None:
    before = masks()
    expected = [line("before", *(percent(before[n]) for n in MASKS), lost(before))]
    for recipe, adapter in RECIPES.items():
        after = masks(adapter)
        accuracies = [percent(after[n]) if n in after else "" for n in MASKS]
        gains = [words(before[n], after[n]) if n in after else "" for n in MASKS]
        expected += [line(f"`{recipe}`, mean of 3 seeds", *accuracies, lost(after)), line("... gain", *gains, "")]
    assert missing("finetune/README.md", expected) == []


def test_fine_tuning_by_seed() -> None:
    expected = []
    for recipe, adapter in RECIPES.items():
        curves = [seed.curve("masks") for seed in seeds_of(row(adapter))]
        few, many = (", ".join(percent(curve[n]) for curve in curves) for n in (2, 200))
        expected.append(line(f"`{recipe}`", few, many, ", ".join(map(lost, curves))))
    assert missing("finetune/README.md", expected) == []


def test_fine_tuning_in_words() -> None:
    before, ce_tv, ce, sft = (masks(adapter) for adapter in (None, CE_TV, CE, SFT))
    lost_by = [f"{100 * (curve[2].mean - curve[200].mean):.1f}" for curve in (before, ce_tv, ce, sft)]
    expected = [
        f"Masks cost it {lost_by[0]} points. The mask-agnostic loss (CE + TV) leaves {lost_by[1]} of them",
        f"CE only {lost_by[2]}, and plain fine-tuning (`sft`) of as many steps on the same text {lost_by[3]}.",
        f"Masks cost CE + TV {lost_more(ce_tv, sft).in_words} points less than plain fine-tuning "
        f"({lost_more_by_seed(CE_TV, SFT)} by seed).",
        f"{lost_more(ce_tv, ce).in_words} points less, but {lost_more_by_seed(CE_TV, CE)} by seed,",
        f"{words(ce_tv[2], before[2])} points at n_masks=2",
        f"by {words(ce_tv[1], ce[1])} points with 1 mask, {words(ce_tv[2], ce[2])} with 2 and "
        f"{words(ce_tv[10], ce[10])} with 10; from 50 masks on that is within chance "
        f"({words(ce_tv[200], ce[200])} with 200).",
        f"({words(ce[2], sft[2])} above) and {words(sft[200], ce[200])} below it at 200",
    ]
    assert missing("finetune/README.md", expected) == []
    above = {n: difference(ce_tv[n], ce[n]).low for n in MASKS}
    assert [n for n, low in above.items() if low is not None and low > 0] == [1, 2, 10]


def test_fine_tuning_with_dots_and_steps() -> None:
    before, ce_tv, ce = (row(adapter).curve("dots") for adapter in (None, CE_TV, CE))
    expected = [
        f"before {percent(before[0])} to {percent(before[200])}, {words(before[200], before[0])} lost;",
        f"CE + TV {percent(ce_tv[0])} to {percent(ce_tv[200])}, {words(ce_tv[200], ce_tv[0])} lost,",
        f"CE only {percent(ce[0])} to {percent(ce[200])}, {words(ce[200], ce[0])} lost,",
        f"CE + TV {words(before[0], ce_tv[0])} points without dots and {words(before[200], ce_tv[200])} with 200, "
        f"CE only {words(before[0], ce[0])} and {words(before[200], ce[200])};",
        f"masks cost the model before {lost(masks(steps=2))} points, CE + TV {lost(masks(CE_TV, steps=2))} "
        f"and CE only {lost(masks(CE, steps=2))}.",
    ]
    before, ce_tv, ce = (lost(masks(adapter, steps=40, limit=50), few=50) for adapter in WITH_40_STEPS.values())
    expected.append(
        f"going from 50 to 200 masks costs the model before {before} points, CE + TV {ce_tv} and CE only {ce}."
    )
    assert missing("finetune/README.md", expected) == []


def test_page_of_the_built_in_model() -> None:
    head = f"{line('n_masks', *map(str, MASKS), 'from 2 to 200')} |---|---|---|---|---|---|---|---| "
    expected = [
        head + line("accuracy", *(percent(curve[n]) for n in MASKS), f"{lost(curve)} lost")
        for curve in (masks(), masks(CE_TV))
    ]
    dots = row().curve("dots")
    expected.append(line("accuracy", percent(dots[0]), percent(dots[200]), words(dots[200], dots[0])))
    positions, ce_tv, ce = (row(adapter).series("positions_by_masks") for adapter in (None, CE_TV, CE))
    for name, curves in (("", positions), ("CE + TV: ", ce_tv), ("CE only: ", ce)):
        for n in (2, 200):
            curve = curves[n]
            cells = (percent(curve[place]) for place in sorted(curve))
            expected.append(line(f"{name}{n} masks", *cells, words(curve[0], curve[40])))
    for name, curves in (("CE + TV", ce_tv), ("CE only", ce)):
        first, last = (words(positions[200][place], curves[200][place]) for place in (0, 40))
        expected.append(f"{name} {first} points at the first and {last} at the last")
    first, last = (words(ce_tv[2][place], positions[2][place]) for place in (0, 40))
    expected.append(f"With 2 masks CE + TV costs {first} points at the first and {last} at the last")
    for name, curve in (
        ("one step", masks()),
        ("two steps", masks(steps=2)),
        ("CE + TV: one step", masks(CE_TV)),
        ("CE + TV: two steps", masks(CE_TV, steps=2)),
        ("CE only: one step", masks(CE)),
        ("CE only: two steps", masks(CE, steps=2)),
    ):
        expected.append(line(name, percent(curve[2]), percent(curve[200]), lost(curve)))
    many = {name: masks(adapter, steps=40, limit=50) for name, adapter in WITH_40_STEPS.items()}
    expected += [line(name, percent(one[50]), percent(one[200]), lost(one, few=50)) for name, one in many.items()]
    gains = [words(many["before"][200], many[name][200]) for name in ("CE + TV", "CE only")]
    expected.append(f"With 200 masks CE + TV gains {gains[0]} points in 40 steps, CE only {gains[1]}.")
    block = row(limit=50, model="built-in-block").curve("masks")
    expected.append(line("accuracy", percent(block[2]), percent(block[200])))
    assert missing("docs/built_in_model.md", expected) == []


def test_readme_and_changelog() -> None:
    before, after, dots = masks(), masks(CE_TV), row().curve("dots")
    expected = [
        f"of all 16,000 the model answers {100 * before[200].mean:.0f}% right with 200 masks, "
        f"and {100 * before[2].mean:.0f}% with `n_masks=2`.",
        f"an adapter that is at {100 * after[200].mean:.0f} and {100 * after[2].mean:.0f}%",
    ]
    assert missing("README.md", expected) == []
    scores = f"({lost(before)} points from 2 to 200), dots less ({words(dots[200], dots[0])} from 0 to 200)"
    assert missing("CHANGELOG.md", [scores]) == []


def test_card_of_the_built_in_model() -> None:
    by_masks, by_dots = masks(), row().curve("dots")
    figures = [
        *(percent(by_masks[2]), percent(by_masks[200]), lost(by_masks)),
        *(percent(by_dots[0]), percent(by_dots[200]), words(by_dots[200], by_dots[0])),
    ]
    by_task = lost_by_task(by_masks)
    capitalised, country = (
        50 * (by_task[f"{category}_largest"] + by_task[f"{category}_smallest"])
        for category in ("capitalised", "country")
    )
    twin = row(limit=50, model="built-in-block").curve("masks")
    most_by_dots = 100 * lost_by_task(by_dots, few=0)["animal_largest"]
    expected = [
        line("the suite, 16,000 questions", *figures),
        f"masks cost it {capitalised:.0f} points on `capitalised` and {country:.0f} on `country`, "
        f"dots {most_by_dots:.0f} on `animal_largest`.",
        line("the suite, 800 questions", percent(twin[2]), percent(twin[200]), lost(twin), "", "", ""),
    ]
    assert missing("mdlm_lm_eval/default_model/README.md", expected) == []
