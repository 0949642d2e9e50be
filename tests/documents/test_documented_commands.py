"""The commands of README and docs are understood by their programs, and generated tables are up to date."""

import re
import runpy
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from lm_eval._cli.harness import HarnessCLI

from mdlm_finetune.recipe import read_arguments
from mdlm_leaderboard.__main__ import _parser as leaderboard_parser
from mdlm_lm_eval.analyses.__main__ import _parser as attribution_parser
from mdlm_lm_eval.check.__main__ import _parser as check_parser
from mdlm_lm_eval.presets import preset_names, published
from mdlm_lm_eval.registry import FAMILIES
from mdlm_lm_eval.resolve import resolve
from mdlm_lm_eval.sweep import __main__ as sweep

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


def test_ci_runs_the_tests_by_the_readmes_command() -> None:
    [command] = re.findall(r"^pip install .*pytest.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == command


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
