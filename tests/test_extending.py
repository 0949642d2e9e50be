"""docs/extending.md: its package installs and its commands run; its diffs apply and do what the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "docs" / "examples"


def run(*words: str, folder: Path, path: tuple[Path, ...]) -> str:
    """What a Python process prints that finds the packages in `path` first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A folder with the page's package, as an installation leaves it."""
    shutil.copytree(EXAMPLES, tmp_path / "acme", ignore=shutil.ignore_patterns("__pycache__"))
    information = tmp_path / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    groups = re.findall(r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"$', PAGE, re.MULTILINE)
    entries = "".join(f"[{group}]\n{name} = {module}\n" for group, name, module in groups)
    (information / "entry_points.txt").write_text(entries)
    return tmp_path


def test_an_unmasking_rule(acme: Path) -> None:
    (arguments,) = re.findall("--model_args (.*unmasking=right_to_left)", PAGE)
    options = {name: int(value) if value.isdigit() else value for name, value in re.findall(r"(\w+)=(\w+)", arguments)}
    code = (
        "from mdlm_lm_eval import DecodingOptions, decode, load_denoiser\n"
        f"print(len(decode(load_denoiser(), [[5, 6]], DecodingOptions(**{options}))[0]))"
    )
    assert run("-c", code, folder=acme, path=(acme,)) == f"{options['n_masks']}\n"


def test_a_training_objective(acme: Path) -> None:
    (flags,) = re.findall("mdlm-finetune (.* whole_answer .*)", PAGE)
    (acme / "answers.jsonl").write_text('{"prompt": "red is", "response": "colour"}\n' * 4)
    words = [*flags.split(), "--model_name_or_path", "built-in", "--max_steps", "1", "--evaluation_limit", "0"]
    run("-m", "mdlm_finetune", *words, folder=acme, path=(acme,))


@pytest.mark.parametrize("example", ["unmasking.py", "family.py", "objective.py"])
def test_what_the_page_shows_of_an_example_is_in_it(example: str) -> None:
    shown = re.findall(r"```python\n(.*?)(?:    \.\.\.\n)?```", PAGE, re.DOTALL)
    assert any(code in (EXAMPLES / example).read_text(encoding="utf-8") for code in shown)


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of a copy of the code with every diff of the page applied."""
    quiet = shutil.ignore_patterns("__pycache__", "training")
    for part in ("mdlm_lm_eval", "tasks", "leaderboard/mdlm_leaderboard"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=quiet)
    for diff in re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    return tmp_path, tmp_path / "leaderboard"


def test_a_few_shot_rule(checkout: tuple[Path, Path]) -> None:
    run("-m", "mdlm_lm_eval.tasks.generate", folder=checkout[0], path=checkout)
    code = (
        "from lm_eval.tasks import TaskManager; from mdlm_lm_eval import tasks_path\n"
        "manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)\n"
        "print(len(manager.load(['mdlm_context'])['tasks']['mdlm_tree_smallest'].dataset['test']))"
    )
    assert run("-c", code, folder=checkout[0], path=checkout) == "1000\n"


def test_a_column_of_the_leaderboard(checkout: tuple[Path, Path]) -> None:
    run(
        "-m",
        "mdlm_leaderboard",
        "build",
        str(ROOT / "leaderboard/suite-2.0/subsets"),
        "--output",
        "site",
        folder=checkout[0],
        path=checkout,
    )
    assert "counts" in (checkout[0] / "site" / "leaderboard.csv").read_text(encoding="utf-8")
