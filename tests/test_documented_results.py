"""The figures of the docs about the built-in model and its adapters are those of the committed result files.

A failing test shows the lines that the document should hold.
"""

import json
import runpy
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median

from mdlm_leaderboard.board import Curve, Row, change
from mdlm_leaderboard.show import show
from mdlm_lm_eval.results.decomposition import SHARES
from mdlm_lm_eval.results.frame import rows_of
from mdlm_lm_eval.results.parallelism import SLACK
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.statistics import (
    Interval,
    Score,
    difference,
    mean_of_tasks,
    median_of_seeds,
)
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.tasks import rule_sets
from tests.leaderboard_files import committed_board

ROOT = Path(__file__).parents[1]
MASKS = (1, 2, 10, 50, 100, 200)
RECIPES = ("built-in-ce-tv", "built-in-ce", "built-in-sft")


def percent(curve: Curve, x: int) -> str:
    return f"{100 * curve[x].mean:.1f}" if x in curve else ""


def lost(curve: Curve, few: int = 2, many: int = 200) -> str:
    found = change(curve, few, many)
    assert found
    return found.in_words


def line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def missing(document: str, expected: Iterable[str]) -> list[str]:
    """What the document does not hold, whatever its line breaks."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    return [sentence for sentence in expected if sentence not in text]


@cache
def of_suite_2_1() -> dict[str, Row]:
    """The built-in model's row of each family of questions: the first 100 of each task."""
    sections = committed_board("suite-2.1").sections
    standard = [one for one in sections if one.setting.fewshot_relevant == 10 and one.setting.limit == 100]
    return {section.setting.asks: next(row for row in section.rows if not row.who.recipe) for section in standard}


def test_the_built_in_model() -> None:
    expected = []
    for name, found in of_suite_2_1().items():
        by_masks, relevant = found.curve("masks"), found.curve("relevant", 2)
        expected += [
            f"{gain_of_examples(relevant)} {'points of ' if name == 'mdlm_context' else 'of '}`{name}`",
            line(f"`{name}`", *(percent(by_masks, n) for n in MASKS), lost(by_masks)),
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
        costs = [above([scores(without[form])], [scores(cell)]).in_words for cell in cells]
        expected.append(line(form, *costs))
    assert missing("leaderboard/suite-2.1/README.md", expected) == []


def test_a_clock_counts_from_where_three_of_four_pairs_of_identical_runs_end() -> None:
    """Of models of one shape on the same questions: the built-in model and its adapters."""
    seconds: dict[str, list[float]] = {}
    for path in (ROOT / "leaderboard/suite-2.1").glob("built-in*/*,n_masks=*,steps=1/results_cell.json"):
        records = (json.loads(path.read_text())["config"]["mdlm"]["tasks"]).values()
        seconds.setdefault(path.parent.name, []).append(sum(record["cost"]["seconds"] for record in records))
    pairs = [max(pair) / min(pair) for own in seconds.values() for pair in combinations(own, 2)]
    within = sum(pair < SLACK for pair in pairs) / len(pairs)
    assert (len(pairs), round(within, 2)) == (1440, 0.74)
    assert (
        missing(
            "leaderboard/README.md", [f"from {SLACK} times on: three of four pairs of identical runs differ by less"]
        )
        == []
    )


def test_labels_on_suite_2_2() -> None:
    cell = "mdlm_rules,n_masks=2,steps=1"
    wrong, hidden = (of_suite_2_2(f"{cell},fewshot_labels={labels}") for labels in ("wrong", "hidden"))
    expected = [
        f"With true labels in the examples and 2 masks, `built-in` is right in {of_suite_2_2(cell)}% of all 16,128 "
        f"questions. With another rule's labels it is right in {wrong}, with hidden ones in {hidden} of 1,600",
    ]
    assert missing("docs/built_in_model.md", expected) == []


def test_the_capital_letter_hides_a_loss_on_suite_2_2() -> None:
    """Sets without the rule `capitalised`, and sets with it that are asked under another rule."""
    clean, capital = strata_of("built-in")
    by_ce, by_ce_tv = (strata_of(f"built-in+out__built-in-{name}-seed0")[0] for name in ("ce", "ce-tv"))
    lost, lost_after = (f"{few - most:.1f}" for few, most in (clean, by_ce))
    expected = [
        f"without the rule *capitalised* it is right in {clean[0]}% with 2 masks and in {clean[1]}% with 200; where a "
        f"set has it and another rule is asked, in {capital[0]}% and {capital[1]}%",
        f"hides a loss of {lost} points in sets without it",
    ]
    assert missing("docs/built_in_model.md", expected) == []
    expected = [
        f"2 masks stay at {clean[0]} and {by_ce[0]}%, and 200 rise from {clean[1]} to {by_ce[1]}%, so that the loss "
        f"shrinks from {lost} to {lost_after} points",
        "gives {} and {}% there".format(*by_ce_tv),
    ]
    assert missing("finetune/README.md", expected) == []


def strata_of(model: str) -> tuple[list[float], list[float]]:
    """Percent right with 2 and 200 masks: in sets without `capitalised`, and with it under another rule."""
    found: tuple[list[float], list[float]] = ([], [])
    for n in (2, 200):
        file = read_result_file(ROOT / f"leaderboard/results/{model}/mdlm_rules,n_masks={n},steps=1/results_cell.json")
        letters: dict[bool, str] = {False: "", True: ""}
        for name, task in file.tasks.items():
            rule, _, distractor = name.removeprefix("mdlm_rules_").rpartition("_")
            asked = rule_sets.asked_sets(rule, distractor)
            if rule != "capitalised":
                for of_set, letter in zip(task.first_token["sets"].split(), task.first_token["letters"], strict=True):
                    letters["capitalised" in asked[of_set].rules] += letter
        for own, has_capital in zip(found, letters, strict=True):
            own.append(round(100 * letters[has_capital].count("R") / len(letters[has_capital]), 1))
    return found


def test_the_page_on_results_shows_a_committed_one() -> None:
    file = ROOT / "leaderboard/results/built-in-instruct/mdlm_rules,n_masks=200,steps=1/results_cell.json"
    shown = "\n".join(show(file)[:4])
    assert f"```text\n{shown}\n...\n```" in (ROOT / "docs/result.md").read_text(encoding="utf-8")


def test_the_ranking_of_suite_2_2() -> None:
    (section,) = (one for one in committed_board().sections if not one.why_apart)
    # New results share their table: results/suite.py names the files that made the same questions.
    assert section.setting.suite_hash == suite_info(["mdlm_verb_smallest"])["sha256"]
    expected = [line(*(column.head for column in section.columns))[1:]]
    for row in section.rows:
        found = (column.of(row, section.pair) for column in section.columns)
        cells = (one.in_words if one else "–" for one in found)
        expected.append(line(str(row.rank), str(section.who(row)), *cells))
    assert missing("leaderboard/results/README.md", expected) == []


def test_the_first_50_questions_of_each_task() -> None:
    """What the quick start and the page on the built-in models ask."""
    shown = {}
    for model in ("built-in", "built-in-instruct"):
        file = read_result_file(ROOT / f"leaderboard/results/{model}/mdlm_rules,n_masks=200,steps=1/results_cell.json")
        shown[model] = [task.first_token["letters"][:50] for task in file.tasks.values()]

    def percent(model: str, counted: str) -> float:
        letters = "".join(shown[model])
        return 100 * sum(map(counted.__contains__, letters)) / len(letters)

    decoded, among, other = (percent("built-in", SHARES[name]) for name in ("decoded", "among_labels", "other"))
    expected = [
        f"exact_match|↑ |{decoded / 100:.4g}|",
        f'"200 masks: {decoded:.1f}% as decoded, {among:.1f}% among letters, {other:.0f}% other tokens"',
    ]
    assert missing("README.md", expected) == []
    decoded, among, ended = (percent("built-in-instruct", SHARES[name]) for name in ("decoded", "among_labels", "eos"))
    expected = [f"200 masks: {decoded:.1f}% as decoded, {among:.1f}% among letters, {ended:.0f}% EOS"]
    assert missing("docs/built_in_model.md", expected) == []


def of_suite_2_2(cell: str, model: str = "built-in") -> str:
    """In percent, with its interval."""
    return scores(cell, f"results/{model}").interval.scaled(100).in_words


def test_the_second_training_seed() -> None:
    cells = [f"mdlm_rules,n_masks={n},steps=1" for n in (2, 200)] + ["mdlm_rules,n_masks=2,steps=1,fewshot_relevant=0"]
    few, many, without = (scores(cell, "suite-2.1-second-seed") for cell in cells)
    slot, dots = (scores(f"mdlm_rules_slot,steps=1,n_fillers={n}", "suite-2.1-second-seed") for n in (0, 200))
    costs = [above([pair[1]], [pair[0]]) for pair in ((many, few), (dots, slot))]
    means = [middle([one]) for one in (without, few)]
    expected = [
        "({}% right without, {}% with them)".format(*means),
        "loses {} points to masks and {} to dots in the slot".format(*(cost.in_words for cost in costs)),
    ]
    assert missing("leaderboard/suite-2.1/README.md", expected) == []


def test_fine_tuning() -> None:
    """Medians over five seeds, too few for an interval."""
    cells = {n: f"mdlm_rules,n_masks={n},steps=1" for n in (2, 200)}
    before = {n: scores(cell) for n, cell in cells.items()}
    lost_before = above([before[2]], [before[200]]).in_words
    expected = [line("before", *(middle([one]) for one in before.values()), lost_before)]
    arms = {}
    for name in RECIPES:
        folders = [f"suite-2.1/built-in+out__{name}-seed{seed}" for seed in range(5)]
        at = {n: [scores(cell, folder) for folder in folders] for n, cell in cells.items()}
        arms[name] = at_200 = at[200]
        costs = above(at[2], at_200).in_words, above(at_200, [before[200]]).with_significance
        expected.append(line(f"`{name}`", *(middle(seeds) for seeds in at.values()), *costs))
    assert above(arms["built-in-ce-tv"], arms["built-in-ce"]).low is None
    assert missing("leaderboard/suite-2.1/README.md", expected) == []


def middle(seeds: list[Score]) -> str:
    """The median in percent."""
    return f"{100 * median(seed.mean for seed in seeds):.1f}"


def above(first: list[Score], second: list[Score]) -> Interval:
    """By how many points the seeds `first` are above `second`."""
    return difference(median_of_seeds(second), median_of_seeds(first)).scaled(100)


def scores(cell: str, folder: str = "suite-2.1/built-in") -> Score:
    """Accuracy of a cell of a committed sweep, over sets where its samples are committed, too."""
    file = read_result_file(ROOT / "leaderboard" / folder / cell / "results_cell.json")
    shares = {row["task"]: row["share"] for row in rows_of(file) if row["task"] in file.tasks}
    return mean_of_tasks([share for _, share in sorted(shares.items())])


def gain_of_examples(curve: Curve) -> str:
    return lost(curve, 10, 0)


def test_the_generated_tasks() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/generated_tasks.py"))
    scores = script["scores_of"](ROOT / "leaderboard/generated_tasks/built-in-lists")
    greedy, sampled = (script["lost"](scores, temperature) for temperature in (0.0, 1.0))
    expected = [f"it loses {sampled} points on average", f"loses {greedy}, not significant (95%)"]
    assert missing("docs/built_in_model.md", expected) == []


def test_the_place_of_the_question() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/placement.py"))
    assert missing("docs/compare_settings.md", [f"The built-in model is right in {script['sentence']()}"]) == []
