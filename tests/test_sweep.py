"""Sweeps: their plan, and the command run as a user does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.sweep.__main__ import RECIPES
from mdlm_lm_eval.sweep.plan import plan

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TIMES = ("date", "total_evaluation_time_seconds", "git_hash")


def sweep(output: Path, checkpoint: Path, task_folder: Path, *arguments: str) -> list[str]:
    model = [f"--model_args=pretrained={checkpoint}", f"--include_path={task_folder}", "--batch_size=2"]
    command = [sys.executable, "-m", "mdlm_lm_eval.sweep", *model, f"--output_path={output}"]
    return [*command, "--tasks=tiny_generate", *arguments]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def stored(output: Path) -> dict[str, Any]:
    """All results, by path, without what differs between two runs of the same."""
    results = {}
    for path in sorted(output.rglob("*.json")):
        result = json.loads(path.read_text())
        results[path.relative_to(output).as_posix()] = {k: v for k, v in result.items() if k not in TIMES}
    return results


def test_every_value_of_an_axis_meets_every_other_once() -> None:
    cells = plan(
        {
            "tasks": "mdlm_context",
            "metadata": {"fewshot_distractors": [0, 10]},
            "grids": [{"n_masks": "1,2", "steps": 1}, {"n_masks": [2], "steps": "1"}, {"mask_ratio": 0.2}],
        }
    ).cells
    names = [cell.name for cell in cells]
    assert names == [
        "mdlm_context,n_masks=1,steps=1,fewshot_distractors=0",
        "mdlm_context,n_masks=1,steps=1,fewshot_distractors=10",
        "mdlm_context,n_masks=2,steps=1,fewshot_distractors=0",
        "mdlm_context,n_masks=2,steps=1,fewshot_distractors=10",
        "mdlm_context,mask_ratio=0.2,fewshot_distractors=0",
        "mdlm_context,mask_ratio=0.2,fewshot_distractors=10",
    ]


def test_adapters_are_an_axis_and_have_folders_of_their_own() -> None:
    planned = plan({"tasks": ["mdlm_slot"], "peft": "none,out/a", "model_args": {"pretrained": "org/model"}})
    assert [planned.model_folder(cell.peft) for cell in planned.cells] == ["org_model", "org_model+a"]


def test_autoregressive_models_have_no_mask_axes() -> None:
    settings = {
        "tasks": ["mdlm_context"],
        "model": "hf",
        "n_masks": [1, 2],
        "metadata": {"fewshot_distractors": [0, 9]},
    }
    assert [cell.name for cell in plan(settings).cells] == [
        "mdlm_context,fewshot_distractors=0",
        "mdlm_context,fewshot_distractors=9",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_mask": "1,2"}, "unknown option n_mask='1,2'; did you mean n_masks?"),
        ({"n_masks": "1,0"}, "n_masks=0 is not allowed"),
        ({"steps": "few"}, "steps='few' is not allowed"),
        ({"unmasking": "random,confident"}, "unmasking='confident' is not allowed"),
        ({"tasks": None}, "tasks is not set"),
        ({"limit": "some"}, "limit='some' is not allowed; allowed is a number"),
        ({"model": "vllm"}, "model=vllm is not allowed in a sweep; allowed are mdlm and hf"),
        ({"grids": "n_masks"}, "allowed is a list of settings"),
        ({"model_args": {"pretraned": "x"}}, "did you mean pretrained?"),
    ],
)
def test_bad_settings_are_refused_before_anything_loads(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as error:
        plan({"tasks": "mdlm_context"} | settings)
    assert message in str(error.value)


def test_packaged_sweeps_parse() -> None:
    paths = sorted(RECIPES.glob("*.yaml"))
    assert [path.stem[:3] for path in paths] == ["e01", "e02", "e04", "e05", "e06", "e07", "e08", "e09", "e10", "e11"]
    for path in paths:
        assert path.read_text().startswith("# Figure")
        assert plan(yaml.safe_load(path.read_text())).cells


def test_a_cell_is_what_lm_eval_itself_writes(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    done = run(sweep(tmp_path / "sweep", checkpoint, task_folder, "--n_masks=3,6", "--steps=2", "--log_samples"))
    assert done.returncode == 0, done.stderr[-2000:]
    ((path, result),) = [(p, r) for p, r in stored(tmp_path / "sweep").items() if "n_masks=6" in p]
    plain = [sys.executable, "-m", "lm_eval", "--model", "mdlm", "--tasks", "tiny_generate", "--batch_size", "2"]
    plain += ["--include_path", str(task_folder), "--log_samples", "--output_path", str(tmp_path / "plain")]
    done = run([*plain, "--model_args", f"pretrained={checkpoint},n_masks=6,steps=2"])
    assert done.returncode == 0, done.stderr[-2000:]
    (expected,) = stored(tmp_path / "plain").values()
    for part in ("results", "versions", "n-shot", "n-samples", "higher_is_better", "task_hashes", "model_source"):
        assert result[part] == expected[part], part
    assert result["config"]["mdlm"] == expected["config"]["mdlm"]
    assert result["config"]["model_args"] == expected["config"]["model_args"]
    samples = [
        sorted(next(folder.rglob("samples_*.jsonl")).read_text().splitlines())
        for folder in ((tmp_path / "sweep" / path).parent, tmp_path / "plain")
    ]
    assert samples[0] == samples[1]
    assert str(tmp_path) not in json.dumps(result["configs"]["tiny_generate"]["metadata"])


def test_killed_and_started_again_ends_with_the_same_files(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    arguments = ("--n_masks=4,5,6,7,8", "--steps=1,2")
    whole = run(sweep(tmp_path / "whole", checkpoint, task_folder, *arguments))
    assert whole.returncode == 0, whole.stderr[-2000:]
    killed = sweep(tmp_path / "killed", checkpoint, task_folder, *arguments)
    with subprocess.Popen(killed, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(stored_paths := list((tmp_path / "killed").rglob("results_cell.json"))) < 2:
            assert process.poll() is None, "ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finished = {path: path.stat().st_mtime_ns for path in stored_paths}
    again = run(killed)
    assert again.returncode == 0, again.stderr[-2000:]
    assert "of 10 cells are finished already" in again.stderr
    assert all(path.stat().st_mtime_ns == time_written for path, time_written in finished.items())
    results = stored(tmp_path / "killed")
    assert len(results) == 10
    assert results == stored(tmp_path / "whole")


def test_a_result_of_other_settings_is_not_overwritten(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    assert run(sweep(tmp_path, checkpoint, task_folder, "--n_masks=4", "--limit=1")).returncode == 0
    before = stored(tmp_path)
    done = run(sweep(tmp_path, checkpoint, task_folder, "--n_masks=4", "--limit=2"))
    assert done.returncode == 1
    assert "is in the way: it was made with limit=1, this sweep has limit=2" in done.stderr.splitlines()[-1]
    assert stored(tmp_path) == before


def test_a_failing_cell_leaves_the_others(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    done = run(sweep(tmp_path, checkpoint, task_folder, "--n_masks=4", "--n_fillers=0,500"))
    assert done.returncode == 1
    assert (
        "mdlm-sweep: failed: tiny_generate,n_masks=4,n_fillers=500: n_masks=4 with 500" in done.stderr.splitlines()[-1]
    )
    assert len(stored(tmp_path)) == 1


def test_bad_command_lines_end_in_one_sentence(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    for arguments, message in (
        (["--n_mask=1,2"], "unknown option n_mask='1,2'; did you mean n_masks?"),
        (["--config=e99"], "--config e99: no such file; packaged are e01_position"),
        (["--tasks=nothing_here"], "tasks=nothing_here is not allowed: lm-eval knows no such task"),
    ):
        done = run(sweep(tmp_path, checkpoint, task_folder, *arguments))
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"mdlm-sweep: {message}")
    assert not list(tmp_path.iterdir())
