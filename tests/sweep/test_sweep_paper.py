"""Recipes that name others: analyses beside scores, and the plan of their questions."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.analyses.report import Report
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.paper.verdict import claims, digest, power
from mdlm_lm_eval.results.frame import read_folder
from mdlm_lm_eval.sweep.__main__ import main, sweep_of
from mdlm_lm_eval.sweep.claims import Claims
from mdlm_lm_eval.sweep.plan import Cell, Sweep, plan
from mdlm_lm_eval.sweep.planning import path_of, planned
from mdlm_lm_eval.sweep.run import Evaluator, Measured, Tasks, as_chats

pytestmark = pytest.mark.slow


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command of a recipe of two others: two cells with scores, and an analysis, each of 16 tasks."""
    (tmp_path / "scores.yaml").write_text("tasks: mdlm_context\nn_masks: [2, 200]\nsteps: 1\n")
    (tmp_path / "gradients.yaml").write_text("tasks: mdlm_context\nanalysis: groups\n")
    recipes = [str(tmp_path / f"{name}.yaml") for name in ("gradients", "scores")]
    claims = "masks: ['n_masks=2', 'n_masks=200']"
    (tmp_path / "all.yaml").write_text(f"recipes: {recipes}\nlog_samples: true\nclaims: {{{claims}}}\n")
    return [f"--config={tmp_path / 'all.yaml'}", "--model_args=pretrained=built-in", "--device=cpu", "--limit=2"]


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


def test_killed_runs_and_shards_write_the_report_of_one_run(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed within an analysis and after a cell, then resumed; and two shards. Its numbers are lm-eval's."""
    killed, sharded = tmp_path / "killed", tmp_path / "sharded"
    added: list[str] = []
    finish, add = Claims.finish, Report.add

    def add_and_stop(self: Report, task: str, rows: Any) -> None:
        add(self, task, rows)
        added.append(task)
        if len(added) == 1:
            raise KeyboardInterrupt

    def finish_and_stop(self: Claims, cell: Cell, files: Mapping[str, bytes]) -> None:
        finish(self, cell, files)
        if cell.arguments.get("n_masks") == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(Report, "add", add_and_stop)
        stopping.setattr(Claims, "finish", finish_and_stop)
        assert [call(monkeypatch, *words, f"--output_path={killed}") for _ in range(2)] == [130, 130]
        assert not (killed / "report").exists()
        assert call(monkeypatch, *words, f"--output_path={killed}") == 0
    assert len(set(added)) == len(added) == 16, "each task once"
    assert not list((killed / ".partial").iterdir())
    assert "Verdicts on the paper's 4 claims: " in capfd.readouterr().out
    assert call(monkeypatch, *words, f"--output_path={sharded}", "--shard=1/2") == 0
    assert "2 cells are missing" in capfd.readouterr().err
    assert call(monkeypatch, *words, f"--output_path={sharded}", "--shard=0/2") == 0
    reports = [{path.name: path for path in (folder / "report").rglob("*.*")} for folder in (killed, sharded)]
    assert reports[0].keys() == reports[1].keys() > {"index.html", "e04.svg", "table1.svg", "verdicts-0.svg"}
    for name, path in reports[0].items():
        assert path.is_dir() or path.read_bytes() == reports[1][name].read_bytes(), name
    curves = json.loads(reports[0]["report.json"].read_text())["experiments"]["e04"]["curves"]["built-in"]
    files, left_out = read_folder(killed)
    assert (len(files), left_out) == (2, {}), "plans, analyses and reports are no results"
    scores = {str(file.tasks["mdlm_animal_smallest"].options["n_masks"]): file for file in files}
    for n_masks, file in scores.items():
        mean = file.group_results["mdlm_context"].metrics["exact_match,none"]
        assert curves[0]["points"][n_masks]["mean"] == pytest.approx(100 * mean)
    capfd.readouterr()
    assert call(monkeypatch, *words, f"--output_path={killed}", "--status") == 0
    assert "3 cells: 3 done, 0 missing, 0 of other settings" in capfd.readouterr().out


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


def test_a_way_of_computing_takes_the_seconds_of_its_cell(long_checkpoint: Path) -> None:
    settings = {"tasks": "mdlm_animal_smallest", "n_masks": [2, 9], "metadata": {"fewshot_distractors": 0}}
    sweep = plan(settings | {"model_args": {"pretrained": str(long_checkpoint)}, "device": "cpu"})
    ways = dict(zip(("few masks", "many"), sweep.cells, strict=True))
    found = Evaluator(sweep, Tasks(sweep), sweep.cells[0]).measure(ways)
    assert found.seconds.keys() == ways.keys()
    assert min(found.start, *found.seconds.values()) > 0
