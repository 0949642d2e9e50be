"""README and docs: programs understand their commands, tables are generated, figures are those of committed results.

A failing test about figures shows the lines that the document should hold.
"""

import re
import runpy
import shlex
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from lm_eval._cli.harness import HarnessCLI

from mdlm_finetune.recipe import read_arguments
from mdlm_leaderboard.__main__ import _parser as leaderboard_parser
from mdlm_leaderboard.show import show
from mdlm_lm_eval.analyses.__main__ import _parser as attribution_parser
from mdlm_lm_eval.check.__main__ import _parser as check_parser
from mdlm_lm_eval.presets import preset_names, published
from mdlm_lm_eval.registry import FAMILIES
from mdlm_lm_eval.resolve import resolve
from mdlm_lm_eval.results.result_file import read_result_file
from mdlm_lm_eval.results.samples import SHARES
from mdlm_lm_eval.results.suite import suite_info
from mdlm_lm_eval.sweep import __main__ as sweep
from tests.support.leaderboard_files import committed_board

ROOT = Path(__file__).parents[2]
# tests/documents/test_extending.py runs the commands of docs/extending.md, which need its examples.
PAGES = {*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("leaderboard/results/*.md")} - {
    ROOT / name for name in ("CHANGELOG.md", "docs/extending.md")
}
PROGRAM = r"(?:lm_eval|mdlm-\w+|-m (?:lm_eval|mdlm_\w+(?:\.\w+)*)|python (?:docs|benchmarks)/\w+\.py)"


def commands(text: str) -> set[str]:
    """A page's commands: in shell blocks, and in code spans of at least three words."""
    blocks = "\n".join(re.findall(r"^ *```(?:bash|sh)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL))
    blocks = re.sub(r"'\{[^']*'", lambda found: " ".join(found[0].split()), blocks)  # JSON on several lines
    lines = re.split(r"\n| && ", blocks.replace("\\\n", " "))
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines += [" ".join(span.split()) for span in spans if len(span.split()) > 2 and "..." not in span]
    return {
        " ".join(found[1].split()) for line in lines if (found := re.search(rf"(?:^|\s)({PROGRAM}(?:\s.*)?)$", line))
    }


def lm_eval(words: list[str]) -> None:
    given = HarnessCLI()._parser.parse_args(["run", *words])
    if given.model != "mdlm-server":  # which asks the server
        resolve(dict(given.model_args or {}))


def mdlm_sweep(words: list[str]) -> None:
    planned, places = sweep.sweep_of(words)
    assert planned.cells
    assert places["output_path"]


PROGRAMS = {
    "lm_eval": lm_eval,
    "mdlm-sweep": mdlm_sweep,
    "mdlm-check": lambda words: check_parser().parse_args(words),
    "mdlm-attribution": lambda words: attribution_parser().parse_args(words),
    "mdlm-leaderboard": lambda words: leaderboard_parser().parse_args(words),
    "mdlm-finetune": lambda words: words == ["--help"] or read_arguments(words),
}


@pytest.mark.parametrize("command", sorted({each for page in PAGES for each in commands(page.read_text())}))
def test_a_command_is_understood(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for page, file in (("compare_settings", "settings.yaml"), ("guests", "guests.yaml")):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        Path(file).write_text(text.partition("```yaml\n")[2].partition("```")[0])
    program, *words = (word for word in shlex.split(command) if word not in ("python", "-m"))
    if program in PROGRAMS:
        PROGRAMS[program](words)
    elif program.endswith(".py"):
        code = (ROOT / program).read_text()
        assert all(f'"{word}"' in code for word in words if word.startswith("--"))
    else:
        assert find_spec(program)


def test_tables_are_as_generated(tmp_path: Path) -> None:
    for page in ("options.md", "verified.md"):
        shutil.copy(ROOT / "docs" / page, tmp_path)
    script = runpy.run_path(str(ROOT / "docs" / "write_options.py"))
    script["write"](tmp_path)
    script["write_checks"](tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (ROOT / "docs" / path.name).read_text(), "run `python docs/write_options.py`"


def test_every_preset_has_a_command_and_is_one_of_a_sweep() -> None:
    assert sorted(published()) == [*preset_names()]
    for name, run in published().items():
        lm_eval(["--model", "mdlm", *run.flags])
        mdlm_sweep(["--preset", name, "--output_path", "results"])
        has_template = "-base/" not in name and not name.startswith("d3llm/")  # they leave it out
        assert ("--apply_chat_template" in run.flags) == has_template
        assert run.family in FAMILIES.all()


# Figures about the built-in models and their adapters


def line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def missing(document: str, expected: Iterable[str]) -> list[str]:
    """What the document does not hold, whatever its line breaks."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    return [sentence for sentence in expected if sentence not in text]


def test_the_page_on_results_shows_a_committed_one() -> None:
    file = ROOT / "leaderboard/results/built-in-instruct/mdlm_rules,n_masks=200,steps=1/results_cell.json.gz"
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
    """What the quick start asks."""
    cell = ROOT / "leaderboard/results/built-in/mdlm_rules,n_masks=200,steps=1/results_cell.json.gz"
    letters = "".join(task.first_token["letters"][:50] for task in read_result_file(cell).tasks.values())

    def percent(counted: str) -> float:
        return 100 * sum(map(counted.__contains__, letters)) / len(letters)

    decoded, among, other = (percent(SHARES[name]) for name in ("decoded", "among_labels", "other"))
    expected = [
        f"mdlm_rules (exact_match) {decoded:.1f} (",
        f"answers 200 masks: {decoded:.1f}% as decoded, {among:.1f}% among letters, {other:.1f}% other tokens",
    ]
    assert missing("README.md", expected) == []


def test_the_generated_tasks(tmp_path: Path) -> None:
    shutil.unpack_archive(ROOT / "leaderboard/generated_tasks.tar.xz", tmp_path, filter="data")
    script = runpy.run_path(str(ROOT / "benchmarks/generated_tasks.py"))
    scores = script["scores_of"](tmp_path / "generated_tasks/built-in-lists")
    greedy, sampled = (script["lost"](scores, temperature) for temperature in (0.0, 1.0))
    expected = [f"it loses {mean} points on average" for mean in (sampled, greedy)]
    assert missing("docs/built_in_model.md", expected) == []
