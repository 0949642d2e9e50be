"""Which tasks a sweep finds, and what its cells ask: the prompts of the `lm_eval` command that each records."""

import json
import random
import shlex
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from lm_eval.tasks import TaskManager

from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.run import Tasks
from tests.conftest import LM_EVAL_05, data, tasks_of
from tests.support.commands import run
from tests.sweep.test_sweep import stored, sweep


@pytest.fixture
def drawing_tasks(tmp_path: Path) -> Path:
    """Tasks `reordered` and `with_choices`, which draw random numbers as they are loaded."""
    return tasks_of("drawing_tasks", tmp_path / "drawing")


def prompts(folder: Path) -> list[tuple[Any, ...]]:
    """Each question's documents, as asked and as scored, in lm-eval's order."""
    (path,) = folder.rglob("samples_*.jsonl")
    samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return [(sample["doc"], sample["arguments"]["gen_args_0"]["arg_0"]) for sample in samples]


@pytest.mark.skipif(LM_EVAL_05, reason="lm-eval 0.5.0.dev1 refuses few-shot examples whose answers are digits")
@pytest.mark.parametrize("task", ["reordered", "with_choices"])
def test_every_cell_asks_what_its_command_asks(
    tmp_path: Path, checkpoint: Path, drawing_tasks: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(5)  # of whatever ran before
    # What `datasets` keeps of the sweep must not help the command.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    output = tmp_path / "out"
    more = (f"--tasks={task}", "--n_masks=4,5", "--limit=3", "--log_samples")
    assert sweep(output, checkpoint, drawing_tasks, *more).code == 0
    ((path, result),) = [(path, result) for path, result in stored(output).items() if "n_masks=5" in path]
    command = shlex.split(result["config"]["mdlm_sweep"]["command"])
    run(*command, "--log_samples", "--output_path", str(tmp_path / "alone"))
    expected = prompts(tmp_path / "alone")
    cells = sorted((output / path).parent.parent.glob(f"{task},*"))
    assert [prompts(cell) for cell in cells] == [expected] * 2
    shutil.rmtree((output / path).parent)
    assert sweep(output, checkpoint, drawing_tasks, *more).code == 0
    assert prompts((output / path).parent) == expected
    if task == "reordered":
        sweep(output, checkpoint, drawing_tasks, *more, "--seed=7", "--n_masks=5")
        (another,) = (output / path).parent.parent.glob("*n_masks=5*seed=7")
        assert prompts(another) != expected


@pytest.mark.parametrize(("tasks", "expected", "is_indexed"), data("cases.json")["tasks of a sweep"])
def test_lm_evals_own_tasks_are_known_where_they_may_be_meant(
    tmp_path: Path,
    task_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tasks: str,
    expected: list[str],
    is_indexed: bool,
) -> None:
    """Indexing them takes many seconds; here, the others stand for all."""
    mine = shutil.copytree(task_folder, tmp_path / "mine")
    (mine / "group.yaml").write_text(yaml.safe_dump({"group": "my_group", "task": ["tiny_choice"]}))
    indexed = []

    def manager(include_path: Any, metadata: Any, include_defaults: bool = True) -> TaskManager:
        indexed.append(include_defaults)
        return TaskManager(include_path=include_path, include_defaults=False, metadata=metadata)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", manager)
    expanded = Tasks(plan({"tasks": tasks, "include_path": str(mine)})).expanded()
    assert [cell.task for cell in expanded.cells] == expected
    assert any(indexed) == is_indexed
