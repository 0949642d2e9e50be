"""Recipes that name others: analyses beside scores, and the plan of their questions."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.analyses.__main__ import main as attribution
from mdlm_lm_eval.analyses.report import Report
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.verdict import claims, digest, power
from mdlm_lm_eval.results.frame import read_folder
from mdlm_lm_eval.sweep.__main__ import main, sweep_of
from mdlm_lm_eval.sweep.plan import Cell, Sweep
from mdlm_lm_eval.sweep.planning import path_of, planned
from mdlm_lm_eval.sweep.run import Measured, Tasks, as_chats


@pytest.fixture
def words(tmp_path: Path, long_checkpoint: Path) -> list[str]:
    """The command of a recipe of two others: a cell with scores, and an analysis of 16 tasks."""
    (tmp_path / "scores.yaml").write_text("tasks: mdlm_animal_smallest\nn_masks: 3\nsteps: 1\n")
    (tmp_path / "gradients.yaml").write_text("tasks: mdlm_context\nanalysis: groups\n")
    recipes = [str(tmp_path / f"{name}.yaml") for name in ("scores", "gradients")]
    (tmp_path / "both.yaml").write_text(f"recipes: {recipes}\nlog_samples: true\n")
    few = ["--metadata", "fewshot_relevant=2", "fewshot_distractors=3"]
    model = [f"--model_args=pretrained={long_checkpoint}", "--batch_size=2", "--device=cpu", "--limit=1"]
    return [f"--config={tmp_path / 'both.yaml'}", *few, *model, f"--output_path={tmp_path / 'out'}"]


def planning_of(output: Path, hours: float | None, *words: str, **took: float) -> tuple[Sweep, Path]:
    """The planned sweep of a command, and its plan. One question of each task takes so many seconds, by way."""

    def measure(ways: Mapping[str, Cell]) -> Measured:
        assert ways.keys() == {name.replace("_", " ") for name in took}
        return Measured({way: took[way.replace(" ", "_")] for way in ways}, start=1.0)

    sweep, _ = sweep_of(words)
    tasks = Tasks(as_chats(sweep))
    return planned(tasks.expanded(), tasks, output, hours=hours, measure=measure), path_of(sweep, output)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """The exit status of a sweep in this process."""
    monkeypatch.setattr(sys, "argv", ["mdlm-sweep", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_an_analysis_is_a_cell_and_goes_on_where_it_was_killed(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows are those of its own command, which the file names."""
    added: list[str] = []

    def stop_after_one(self: Report, task: str, rows: Any, add: Any = Report.add) -> None:
        add(self, task, rows)
        added.append(task)
        if len(added) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Report, "add", stop_after_one)
    assert call(monkeypatch, *words) == 130
    assert call(monkeypatch, *words) == 0
    assert len(set(added)) == len(added) == 16, "each task once"
    (path,) = (tmp_path / "out").glob("*/analyses/groups*/attribution_groups.json")
    found = json.loads(path.read_text())
    assert not list((tmp_path / "out" / ".partial").iterdir())
    monkeypatch.setattr(sys, "argv", [*shlex.split(found["command"]), f"--output_path={tmp_path / 'alone'}"])
    attribution()
    alone = json.loads((tmp_path / "alone" / "attribution_groups.json").read_text())
    assert (found["rows"], found["summary"]) == (alone["rows"], alone["summary"])
    files, left_out = read_folder(tmp_path / "out")
    assert (len(files), left_out) == (1, {}), "plans and analyses are no results"
    capsys.readouterr()
    assert call(monkeypatch, *words) == 0
    assert f"2 of 2 cells are done in {tmp_path / 'out'}, 0 by this process" in capsys.readouterr().err
    assert call(monkeypatch, *words, "--metadata", "fewshot_relevant=2", "fewshot_distractors=3", "--status") == 0
    assert "2 cells: 2 done, 0 missing, 0 of other settings" in capsys.readouterr().out


def test_a_plan_is_made_once_of_cells_that_can_run(tmp_path: Path, long_checkpoint: Path) -> None:
    (tmp_path / "scores.yaml").write_text("tasks: mdlm_animal_smallest\nsteps: 1\nn_masks: [2, 3000]\n")
    (tmp_path / "slot.yaml").write_text("tasks: mdlm_animal_smallest_slot\n")
    (tmp_path / "all.yaml").write_text(
        f"recipes: [table1, {tmp_path / 'scores.yaml'}, {tmp_path / 'slot.yaml'}]\n"
        "claims: {gradients_masks: [analyses/groups], masks: [n_masks=2, n_masks=3000]}\n"
    )
    few = ["--metadata", "fewshot_relevant=2", "fewshot_distractors=3"]
    words = [f"--config={tmp_path / 'all.yaml'}", *few, f"--model_args=pretrained={long_checkpoint}"]
    took = {"one_pass": 2.0, "gradients": 3.0}
    sweep, path = planning_of(tmp_path / "out", 0.1, *words, **took)
    plan = json.loads(path.read_text())
    name = long_checkpoint.name
    groups, few_masks, slot = (
        f"{name}/{cell},fewshot_relevant=2,fewshot_distractors=3"
        for cell in ("analyses/groups", "mdlm_animal_smallest,n_masks=2,steps=1", "mdlm_animal_smallest_slot")
    )
    assert plan["cells"].keys() == {groups, few_masks, slot}
    (reason,) = plan["left_out"].values()
    assert reason.endswith("tokens, but the model's context has 2048")
    assert list(plan["declared"]) == ["gradients_masks"], "a claim needs all of its cells"
    n = plan["declared"]["gradients_masks"]["questions"]
    claim = claims()["gradients_masks"]
    assert plan["declared"]["gradients_masks"]["reproduced"] == power(claim, 4 * claim.delta, n, 1)
    questions = {one: plan["cells"][one]["questions"] for one in plan["cells"]}
    assert questions == {cell.name: cell.limit for cell in sweep.cells}
    seconds = 3 + questions[groups] * 3 + questions[few_masks] * 2 * 1 + questions[slot] * 2
    assert 0.9 * 360 < seconds <= 1.01 * 360, "a pass of a task takes two seconds"
    assert (plan["hours"], plan["limit"], plan["claims"]) == (0.1, None, digest())
    again, _ = planning_of(tmp_path / "out", None, *words)
    assert again == sweep, "a resumed run needs no hours, and measures nothing"
    with pytest.raises(OptionError, match="was made with other limit, hours; repeat its command"):
        planning_of(tmp_path / "out", None, *words, "--limit=2")
    with pytest.raises(OptionError, match=r"no cell can run: takes \d+ tokens"):
        planning_of(
            tmp_path / "none",
            None,
            *words,
            "--tasks=mdlm_animal_smallest",
            "--n_masks=3000",
            "--model_args",
            "max_length=100",
        )


def test_autoregressive_models_get_open_ended_questions_alone(tmp_path: Path, long_checkpoint: Path) -> None:
    (tmp_path / "open.yaml").write_text("tasks: [mdlm_animal_smallest, mdlm_animal_smallest_slot]\nn_masks: [2, 9]\n")
    (tmp_path / "all.yaml").write_text(f"recipes: [table1, {tmp_path / 'open.yaml'}]\n")
    words = [f"--config={tmp_path / 'all.yaml'}", "--model=hf", f"--model_args=pretrained={long_checkpoint}"]
    sweep, path = planning_of(tmp_path / "out", None, *words, "--limit=3")
    assert [(cell.task, cell.limit) for cell in sweep.cells] == [("mdlm_animal_smallest", 3)]
    assert len(json.loads(path.read_text())["left_out"]) == 2
