"""The command line: results file, error messages, two processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ENVIRONMENT, LM_EVAL


def run(checkpoint: Path, task_folder: Path, *arguments: str, tasks: str = "tiny_generate") -> Any:
    command = [sys.executable, "-c", LM_EVAL, "--model", "mdlm", "--include_path", str(task_folder), "--tasks", tasks]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=False)


def result_file(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("results_*.json")
    return json.loads(path.read_text())


def samples(folder: Path, task: str) -> dict[int, Any]:
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["doc_id"]: row["resps"] for row in rows}


@pytest.fixture(scope="module")
def one_process(checkpoint: Path, task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    done = run(
        checkpoint,
        task_folder,
        *("--model_args", f"pretrained={checkpoint},n_masks=6", "--output_path", str(out), "--log_samples"),
        tasks="tiny_generate,tiny_choice,tiny_sampled",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def test_results_file_names_the_settings(one_process: Path) -> None:
    info = result_file(one_process)["config"]["mdlm"]
    assert info["decoding"]["n_masks"] == 6
    assert info["processes"] == 1
    assert info["decoding"]["seed"] == 1234  # lm-eval's default --seed
    assert info["tasks"]["tiny_generate"]["masks"] == [6, 6]
    first = samples(one_process, "tiny_sampled")[0][0]
    assert len(set(first)) == 3


def test_two_processes_give_the_same_answers(
    checkpoint: Path, task_folder: Path, one_process: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(LM_EVAL)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [
            *command,
            *("--model", "mdlm", "--include_path", str(task_folder)),
            *(
                "--tasks",
                "tiny_generate,tiny_choice,tiny_sampled",
                "--model_args",
                f"pretrained={checkpoint},n_masks=6",
            ),
            *("--output_path", str(tmp_path / "out"), "--log_samples"),
        ],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    info = result_file(tmp_path / "out")["config"]["mdlm"]
    assert info["processes"] == 2
    for task in ("tiny_generate", "tiny_choice", "tiny_sampled"):
        alone, shared = samples(one_process, task), samples(tmp_path / "out", task)
        assert alone.keys() == shared.keys()
        for doc in alone:
            # lm-eval pads the smaller share with a repeated request, whose extra answers follow the document's own
            for one, two in zip(alone[doc], shared[doc], strict=True):
                if task == "tiny_choice":
                    assert [float(v) for v, _ in one] == pytest.approx([float(v) for v, _ in two[: len(one)]], abs=1e-4)
                else:
                    assert one == two[: len(one)]
    tasks = info["tasks"]
    assert tasks["tiny_generate"]["requests"] >= 5


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model_args", "pretrained=CHECKPOINT,nmask=5"), "did you mean n_masks?"),
        (("--model_args", "pretrained=CHECKPOINT", "--gen_kwargs", "steps=0"), "steps"),
    ],
)
def test_bad_input_ends_with_one_sentence(
    checkpoint: Path, task_folder: Path, arguments: tuple[str, ...], named: str
) -> None:
    done = run(checkpoint, task_folder, *(argument.replace("CHECKPOINT", str(checkpoint)) for argument in arguments))
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("lm_eval: ")
    assert "Traceback" not in done.stderr
    assert named in last
