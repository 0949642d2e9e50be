"""The command line: results file, error messages, two processes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from mdlm_leaderboard.__main__ import main as leaderboard
from mdlm_lm_eval.command_line import ending_well
from mdlm_lm_eval.options import OptionError
from tests.support.commands import run

ALL_TASKS = "tiny_generate,tiny_choice,tiny_sampled"


def words(checkpoint: Path, task_folder: Path, out: Path) -> list[str]:
    asked = ["--include_path", str(task_folder), "--tasks", ALL_TASKS, "--log_samples", "--output_path", str(out)]
    return ["--model", "mdlm", "--model_args", f"pretrained={checkpoint},n_masks=6", *asked]


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
    done = run("lm_eval", *words(checkpoint, task_folder, out))
    (out / "stderr").write_text(done.stderr)
    return out


def test_a_run_ends_with_what_was_in_effect_and_how_to_see_the_scores(one_process: Path) -> None:
    settings, speed, scores = (one_process / "stderr").read_text().splitlines()[-3:]
    assert settings == "mdlm: settings  masks 6, steps 4 to 6, cache none, no chat template"
    words = r"\d\.\d\d tokens per forward pass, \S+ s per question, \S+ GiB, \d+% of batch slots busy"
    assert re.fullmatch(f"mdlm: speed     {words}", speed)
    assert scores == f"mdlm: scores    mdlm-leaderboard show {one_process}"
    assert leaderboard(["show", str(one_process)]) == 0


def test_results_file_names_the_settings(one_process: Path) -> None:
    info = result_file(one_process)["config"]["mdlm"]
    assert info["processes"] == 1
    assert info["decoding"]["seed"] == 1234  # lm-eval's default --seed
    assert info["tasks"]["tiny_generate"]["masks"] == info["tasks"]["tiny_generate"]["asked_masks"] == [6, 6]
    effective = {kind["request_type"]: kind for kind in info["settings"] if kind["tasks"] != ["tiny_sampled"]}
    assert effective["generate_until"]["tasks"] == ["tiny_generate"]
    assert effective["generate_until"]["options"] == info["decoding"] | {"max_gen_toks": 4}
    assert effective["loglikelihood"] == {
        "request_type": "loglikelihood",
        "options": info["likelihood"],
        "tasks": ["tiny_choice"],
    }
    assert [kind["options"]["temperature"] for kind in info["settings"] if "tiny_sampled" in kind["tasks"]] == [1.0]
    first = samples(one_process, "tiny_sampled")[0][0]
    assert len(set(first)) == 3


def test_two_processes_give_the_same_answers(
    checkpoint: Path, task_folder: Path, one_process: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("lm_eval", *words(checkpoint, task_folder, out), processes=2)
    info = result_file(out)["config"]["mdlm"]
    assert info["processes"] == 2
    for task in ALL_TASKS.split(","):
        alone, shared = samples(one_process, task), samples(out, task)
        assert alone.keys() == shared.keys()
        for doc in alone:
            # lm-eval pads the smaller share with copies of its last request, whose answers follow the document's own
            for one, two in zip(alone[doc], shared[doc], strict=True):
                if task == "tiny_choice":
                    assert [float(v) for v, _ in one] == pytest.approx([float(v) for v, _ in two[: len(one)]], abs=1e-4)
                else:
                    assert two == one * (len(two) // len(one))
    alone = result_file(one_process)["config"]["mdlm"]
    for task, facts in alone["tasks"].items():
        assert info["tasks"][task]["requests"] == facts["requests"]
        assert info["tasks"][task]["cost"].get("forward_passes") == facts["cost"].get("forward_passes")
    assert info["settings"] == alone["settings"]


# How commands end


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionError("n_masks=0 is too small"), 2, "command: n_masks=0 is too small\n"),
        (KeyboardInterrupt(), 130, "\ncommand: stopped; the same command goes on\n"),
    ],
)
def test_how_a_command_ends(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ending_well("command", after_stop="the same command goes on"):
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (code, said)


def test_a_command_leaves_its_process_group(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    with ending_well("command", after_stop=""):
        assert distributed.is_initialized()
    assert not distributed.is_initialized()
