"""docs/extending.md: its examples run, from a folder outside the package or as the diffs that it shows."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mdlm_finetune.arguments import read_arguments
from mdlm_finetune.objectives import _registered as objectives
from mdlm_lm_eval.decoding import rules
from mdlm_lm_eval.decoding.candidates import Candidates
from mdlm_lm_eval.options import DecodingOptions, OptionError

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = REPOSITORY / "docs" / "examples"


def install(folder: Path, example: str, group: str, entry: str) -> None:
    """The example as a module of an installed package, outside of this one, that names it in its entry points."""
    module = entry.partition(" = ")[2].partition(":")[0]
    shutil.copy(EXAMPLES / example, folder / f"{module}.py")
    information = folder / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


def code_of(example: str) -> str:
    """An example without its docstring, as the page shows it."""
    return (EXAMPLES / example).read_text(encoding="utf-8").split('"""\n', maxsplit=2)[-1].strip()


def test_an_unmasking_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_registered", dict(rules._registered))
    with pytest.raises(OptionError, match="right_to_left"):
        DecodingOptions(unmasking="right_to_left")
    install(tmp_path, "unmasking.py", rules.ENTRY_POINTS, "right_to_left = acme_unmasking:right_to_left")
    monkeypatch.syspath_prepend(tmp_path)
    rules._installed.cache_clear()
    try:
        assert DecodingOptions(unmasking="right_to_left").unmasking in rules.unmasking_names()
        nothing = torch.zeros(3)
        candidates = Candidates(nothing[:, None], nothing[:, None], nothing, nothing.bool(), torch.arange(3), nothing)
        assert rules.unmasking_rule("right_to_left").rank(candidates).tolist() == [0.0, 1.0, 2.0]
    finally:
        rules._installed.cache_clear()
    assert code_of("unmasking.py") in PAGE


def test_a_training_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdlm_finetune.objectives._registered", dict(objectives))
    install(tmp_path, "objective.py", "mdlm_finetune.objectives", "whole_answer = acme_objective")
    monkeypatch.syspath_prepend(tmp_path)
    command = re.search("mdlm-finetune (--objective whole_answer .*)", PAGE)
    assert command
    objective = read_arguments(command[1].split())[1]
    assert vars(objective)["label_smoothing"] == 0.1
    text, maskable = torch.tensor([5, 6, 7]), torch.tensor([False, True, True])
    noised = objective.noise(text, maskable, type("Noising", (), {"mask_token_id": 9})())  # type: ignore[arg-type]
    assert noised.views[0].tolist() == [5, 9, 9]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the code with every diff of the page applied."""
    for part in ("mdlm_lm_eval", "tasks", "leaderboard/mdlm_leaderboard"):
        shutil.copytree(
            REPOSITORY / part,
            tmp_path / part,
            ignore=shutil.ignore_patterns("*.safetensors", "__pycache__", "training"),
        )
    for diff in re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL):
        for name, lines in re.findall(r"\+\+\+ b/(\S+)\n@@.*\n((?:[ +-].*\n)+?)(?=--- |\Z)", diff):
            apply(tmp_path / name, lines.splitlines())
    return tmp_path


def apply(path: Path, lines: list[str]) -> None:
    """One hunk of a diff: what it leaves and takes away must stand in the file once."""
    before = "".join(line[1:] + "\n" for line in lines if line[0] in " -")
    after = "".join(line[1:] + "\n" for line in lines if line[0] in " +")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text.count(before) == 1 or not text, f"{path}: the page's diff does not fit"
    path.write_text(text.replace(before, after) if text else after, encoding="utf-8")


def run(checkout: Path, code: str) -> str:
    """Runs code on the copy: without `site`, whose start-up hook would import the installed package first."""
    packages = Path(importlib.util.find_spec("lm_eval").origin).parents[1]  # type: ignore[union-attr, arg-type]
    path = [str(checkout), str(checkout / "leaderboard"), str(packages)]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"],
        capture_output=True,
        text=True,
        cwd=checkout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_few_shot_rule(checkout: Path) -> None:
    code = (
        "import runpy; runpy.run_module('mdlm_lm_eval.tasks.generate', run_name='__main__')\n"
        "from lm_eval.tasks import TaskManager; from mdlm_lm_eval import tasks_path\n"
        "manager = TaskManager(include_path=str(tasks_path()), include_defaults=False)\n"
        "task = manager.load(['mdlm_tree_smallest'])['tasks']['mdlm_tree_smallest']\n"
        "print(len([name for name in manager.all_subtasks if '_tree_' in name]), len(task.dataset['test']))"
    )
    assert run(checkout, code) == "44 1000\n"


def test_a_column_of_the_leaderboard(checkout: Path) -> None:
    code = (
        "from mdlm_leaderboard.experiments import BY_NAME, SUMMARIES\n"
        "print([summary.name for experiment, summary in SUMMARIES if experiment is BY_NAME['masks']])"
    )
    assert run(checkout, code) == "['drop_points', 'n_points', 'degradation_percent']\n"
