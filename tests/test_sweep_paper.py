"""The paper's experiments in one sweep: analyses beside scores."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from mdlm_lm_eval.analyses.__main__ import main as attribution
from mdlm_lm_eval.analyses.report import Report
from mdlm_lm_eval.sweep.__main__ import main


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
    capsys.readouterr()
    assert call(monkeypatch, *words) == 0
    assert f"2 of 2 cells are done in {tmp_path / 'out'}, 0 by this process" in capsys.readouterr().err
    assert call(monkeypatch, *words, "--metadata", "fewshot_relevant=2", "fewshot_distractors=3", "--status") == 0
    assert "2 cells: 2 done, 0 missing, 0 of other settings" in capsys.readouterr().out
