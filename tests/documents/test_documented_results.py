"""The figures of the docs about the built-in model and its adapters are those of the committed result files.

A failing test shows the lines that the document should hold.
"""

import runpy
import shutil
from collections.abc import Iterable
from pathlib import Path

from mdlm_leaderboard.show import show
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.samples import SHARES
from mdlm_lm_eval.results.suite import suite_info
from tests.support.leaderboard_files import committed_board

ROOT = Path(__file__).parents[2]


def line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def missing(document: str, expected: Iterable[str]) -> list[str]:
    """What the document does not hold, whatever its line breaks."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    return [sentence for sentence in expected if sentence not in text]


def test_the_page_on_results_shows_a_committed_one() -> None:
    file = ROOT / "leaderboard/results/built-in-instruct/mdlm_rules,n_masks=200,steps=1/results_cell.json"
    shown = "\n".join(show(file)[:4])
    assert f"```text\n{shown}\n...\n```" in (ROOT / "docs/result.md").read_text(encoding="utf-8")


def test_the_table_of_suite_2_2() -> None:
    (section,) = (one for one in committed_board().sections if not one.why_apart)
    # New results share their table: results/suite.py names the files that made the same questions.
    assert section.setting.suite_hash == suite_info(["mdlm_verb_smallest"])["sha256"]
    expected = [line(*(column.head for column in section.columns))[1:]]
    for row in section.rows:
        found = (column.of(row, section.pair) for column in section.columns)
        cells = (one.in_words if one else "–" for one in found)
        expected.append(line(str(section.who(row)), *cells))
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
        f"mdlm_rules (exact_match) {decoded:.1f} (",
        f"answers 200 masks: {decoded:.1f}% as decoded, {among:.1f}% among letters, {other:.1f}% other tokens",
    ]
    assert missing("README.md", expected) == []
    decoded, among, ended = (percent("built-in-instruct", SHARES[name]) for name in ("decoded", "among_labels", "eos"))
    expected = [f"200 masks: {decoded:.1f}% as decoded, {among:.1f}% among letters, {ended:.1f}% EOS"]
    assert missing("docs/built_in_model.md", expected) == []


def test_the_generated_tasks(tmp_path: Path) -> None:
    shutil.unpack_archive(ROOT / "leaderboard/generated_tasks.tar.gz", tmp_path, filter="data")
    script = runpy.run_path(str(ROOT / "benchmarks/generated_tasks.py"))
    scores = script["scores_of"](tmp_path / "generated_tasks/built-in-lists")
    greedy, sampled = (script["lost"](scores, temperature) for temperature in (0.0, 1.0))
    expected = [f"it loses {sampled} points on average", f"loses {greedy}, not significant (95%)"]
    assert missing("docs/built_in_model.md", expected) == []


def test_the_place_of_the_question() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/placement.py"))
    assert script["table"]() in (ROOT / "docs/compare_settings.md").read_text(encoding="utf-8")
