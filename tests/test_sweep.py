"""Sweeps at work: what they write, skip, refuse and survive."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.results.privacy import published
from mdlm_lm_eval.sweep.__main__ import main
from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.runner import SweepRun
from tests.commands import ENVIRONMENT, LM_EVAL

TIMES = ("date", "total_evaluation_time_seconds", "git_hash")


def run_here(output: Path, checkpoint: Path, task_folder: Path, **settings: Any) -> SweepRun:
    common = {"model_args": {"pretrained": str(checkpoint)}, "include_path": str(task_folder), "batch_size": 2}
    run = SweepRun(plan(common | {"tasks": "tiny_generate", "device": "cpu"} | settings), output)
    run.run()
    return run


def command(output: Path, checkpoint: Path, task_folder: Path, *arguments: str) -> list[str]:
    model = [f"--model_args=pretrained={checkpoint}", f"--include_path={task_folder}", "--batch_size=2", "--device=cpu"]
    words = [sys.executable, "-m", "mdlm_lm_eval.sweep", *model, f"--output_path={output}"]
    return [*words, "--tasks=tiny_generate", *arguments]


def execute(words: list[str], environment: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def stored(output: Path) -> dict[str, Any]:
    """All results, by path, without what differs between two runs of the same."""
    results = {}
    for path in sorted(output.rglob("*.json")):
        result = json.loads(path.read_text())
        for task in result["config"].get("mdlm", {}).get("tasks", {}).values():
            if "cost" in task:
                assert task["cost"].pop("seconds") > 0
                assert task["cost"].pop("peak_memory_bytes") > 0
        results[path.relative_to(output).as_posix()] = {k: v for k, v in result.items() if k not in TIMES}
    return results


def answers(output: Path) -> dict[str, list[Any]]:
    """What was answered to each question, by the name of the sample file's folder."""
    return {
        path.parent.relative_to(output).as_posix(): [
            json.loads(line)["resps"] for line in path.read_text().splitlines()
        ]
        for path in sorted(output.rglob("samples_*.jsonl"))
    }


def adapter(checkpoint: Path, folder: Path, seed: int) -> Path:
    """A LoRA adapter of random weights that change what the model says."""
    adapted = get_peft_model(LlamaForCausalLM.from_pretrained(checkpoint), LoraConfig(r=2, target_modules=["q_proj"]))
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    adapted.save_pretrained(folder)
    return folder


def test_a_cell_is_what_lm_eval_itself_writes(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    run_here(tmp_path / "sweep", checkpoint, task_folder, n_masks=[3, 6], steps=2, log_samples=True)
    ((path, result),) = [(p, r) for p, r in stored(tmp_path / "sweep").items() if "n_masks=6" in p]
    recorded = result["config"]["mdlm_sweep"]["command"]
    model = f"pretrained={checkpoint.name},n_masks=6,steps=2"  # nobody else has this folder
    assert recorded.startswith(f"lm_eval --model mdlm --model_args {model} --tasks")
    here = recorded.replace(checkpoint.name, str(checkpoint)).replace(f" {task_folder.name}", f" {task_folder}")
    plain = [sys.executable, "-c", LM_EVAL, *here.split()[1:]]
    done = execute([*plain, "--log_samples", "--output_path", str(tmp_path / "plain")])
    assert done.returncode == 0, done.stderr[-2000:]
    (expected,) = stored(tmp_path / "plain").values()
    for part in ("results", "versions", "n-shot", "n-samples", "higher_is_better", "task_hashes", "model_source"):
        assert result[part] == expected[part], part
    ours = result["config"].pop("mdlm_sweep")
    assert ours["settings"]["weights"]
    assert result["config"] == published(expected["config"])
    assert result.keys() == expected.keys()
    samples = [
        sorted(next(folder.rglob("samples_*.jsonl")).read_text().splitlines())
        for folder in ((tmp_path / "sweep" / path).parent, tmp_path / "plain")
    ]
    assert samples[0] == samples[1]
    for configs in (result["configs"], expected["configs"]):
        assert configs["tiny_generate"]["metadata"]["config_source"] == "tiny_generate.yaml"


def test_killed_and_started_again_ends_with_the_same_files(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    arguments = ("--n_masks=4,5,6,7,8", "--steps=1,2")
    run_here(tmp_path / "whole", checkpoint, task_folder, n_masks="4,5,6,7,8", steps="1,2")
    words = command(tmp_path / "killed", checkpoint, task_folder, *arguments)
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(finished := list((tmp_path / "killed").rglob("tiny*/results_cell.json"))) < 2:
            assert process.poll() is None, "ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    times = {path: path.stat().st_mtime_ns for path in finished}
    left = tmp_path / "killed" / finished[0].parent.parent.name / ".tiny_generate,n_masks=8,steps=2.unfinished"
    left.mkdir(exist_ok=True)
    (left / "results_of_a_killed_cell.json").write_text('{"results":')
    done = execute(words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "of 10 cells are finished already" in done.stderr
    assert "mdlm-sweep: 10 of 10 cells are done" in done.stderr
    assert all(path.stat().st_mtime_ns == time_written for path, time_written in times.items())
    results = stored(tmp_path / "killed")
    assert len(results) == 10
    assert results == stored(tmp_path / "whole")


def test_nothing_loads_where_all_is_done(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    run_here(tmp_path, checkpoint, task_folder, n_masks=4, limit=1)
    once, again = (run_here(tmp_path, checkpoint, task_folder, n_masks=[4, 5], limit=1).report() for _ in range(2))
    assert "s loading the model" in once.summary()
    assert "loading" not in again.summary()


def test_what_to_type_next_fits_what_was_run(tmp_path: Path, long_checkpoint: Path, task_folder: Path) -> None:
    def next_command(**settings: Any) -> str:
        return run_here(tmp_path, long_checkpoint, task_folder, limit=1, **settings).report().next_command()

    one = "mdlm_country_smallest"
    assert next_command() == f"mdlm-leaderboard build {tmp_path} --output site", "of a task outside the suite"
    assert next_command(tasks=one, n_masks=2) == ""
    files = [tmp_path / long_checkpoint.name / f"{one},n_masks={n}" / "results_cell.json" for n in (2, 4)]
    assert next_command(tasks=[one, "mdlm_verb_largest"], n_masks=[2, 4]) == (
        f"mdlm-leaderboard compare {files[0]} {files[1]}"
    )
    assert next_command(tasks=["mdlm_context", one], n_masks=2).startswith("mdlm-leaderboard build ")


def test_results_of_other_settings_or_weights_stay(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    adapter(checkpoint, tmp_path / "adapter", seed=1)
    settings: dict[str, Any] = {"n_masks": 4, "limit": 2, "peft": str(tmp_path / "adapter")}
    run_here(tmp_path / "out", checkpoint, task_folder, **settings)
    before = stored(tmp_path / "out")
    for changes, message in (
        ({"limit": 1}, "(limit was 2 and is 1); move it"),
        ({"model_args": {"pretrained": str(checkpoint), "dtype": "float64"}}, "(model_args was"),
        ({"system_instruction": "Think."}, "(system_instruction was None and is Think.)"),
    ):
        run = run_here(tmp_path / "out", checkpoint, task_folder, **settings | changes)
        assert len(run.failures) == 1
        assert "is in the way, a result of other settings" in run.failures[0]
        assert message in run.failures[0]
    adapter(checkpoint, tmp_path / "adapter", seed=2)
    run = run_here(tmp_path / "out", checkpoint, task_folder, **settings)
    assert "(adapter_weights was" in run.failures[0]
    (result,) = (tmp_path / "out").rglob("results_cell.json")
    result.rename(result.with_name("renamed.json"))
    assert "holds no result of a sweep" in run_here(tmp_path / "out", checkpoint, task_folder, **settings).failures[0]
    result.with_name("renamed.json").rename(result)
    assert stored(tmp_path / "out") == before


def test_results_of_a_task_that_was_changed_stay(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    mine = shutil.copytree(task_folder, tmp_path / "mine")
    task = mine / "tiny_generate.yaml"
    (mine / "part.yaml").write_text("doc_to_text: !function texts.of\nmetadata: {version: 1.0}\n")
    (mine / "texts.py").write_text("def of(doc):\n    return doc['q']\n")
    text = "include: part.yaml\n" + task.read_text().replace("doc_to_text: '{{q}}'\n", "")
    task.write_text(text)
    run_here(tmp_path / "out", checkpoint, mine, n_masks=4, limit=1)
    before = stored(tmp_path / "out")
    moved = shutil.copytree(mine, tmp_path / "moved")
    (moved / "another.yaml").write_text(text.replace("tiny_generate", "another"))
    (moved / "another.py").touch()
    assert "1 before" in run_here(tmp_path / "out", checkpoint, moved, n_masks=4, limit=1).report().summary()
    for name, old, new in (
        ("tiny_generate.yaml", "max_gen_toks: 4", "max_gen_toks: 3"),
        ("part.yaml", "1.0", "2.0"),
        ("texts.py", "['q']", "['q'].upper()"),
    ):
        changed = shutil.copytree(mine, tmp_path / f"changed {name}")
        (changed / name).write_text((changed / name).read_text().replace(old, new))
        (sentence,) = run_here(tmp_path / "out", checkpoint, changed, n_masks=4, limit=1).failures
        assert "is in the way, a result of other settings (tasks was {'tiny_generate': {'version': 1.0, " in sentence
    assert stored(tmp_path / "out") == before
    # As it was made before settings named tasks.
    (result,) = (tmp_path / "out").rglob("results_cell.json")
    content = json.loads(result.read_text())
    del content["config"]["mdlm_sweep"]["settings"]["tasks"]
    result.write_text(json.dumps(content))
    (sentence,) = run_here(tmp_path / "out", checkpoint, mine, n_masks=4, limit=1).failures
    assert "(tasks was None and is " in sentence


def test_adapters_share_the_weights_and_leave_no_trace(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    one, two = (str(adapter(checkpoint, tmp_path / name, seed)) for name, seed in (("one", 1), ("two", 2)))
    common: dict[str, Any] = {"n_masks": 6, "log_samples": True}
    together = run_here(tmp_path / "together", checkpoint, task_folder, peft=[one, "none", two], **common)
    assert not together.failures
    for peft in (one, "none", two):
        run_here(tmp_path / "alone", checkpoint, task_folder, peft=peft, **common)
    expected = answers(tmp_path / "alone")
    assert answers(tmp_path / "together") == expected
    assert len(expected) == 3
    assert len({json.dumps(said) for said in expected.values()}) == 3
    adapters = {result["config"]["mdlm"]["adapter"] for result in stored(tmp_path / "together").values()}
    assert adapters == {"one", None, "two"}


def test_what_cannot_be_written_or_loaded_is_said_at_once(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OptionError, match=r"--output_path .*file cannot be written"):
        run_here(tmp_path / "file", checkpoint, task_folder, n_masks=4)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(OptionError, match="there is no such folder"):
        run_here(tmp_path / "out", tmp_path / "none", task_folder, n_masks=4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tasks": "mdlm_verb_smallest", "metadata": {"foo": 1}}, "unknown setting of the few-shot tasks foo=1"),
        ({"tasks": "mdlm_verb_smallest", "metadata": {"fewshot_relevant": "abc"}}, "fewshot_relevant must be a whole"),
        ({"peft": "/nowhere/adapter"}, "peft=/nowhere/adapter: there is no such folder"),
        ({"n_masks": 3, "block_length": 5}, "block_length must be at most n_masks=3, not 5"),
        ({"n_masks": 100_000}, "n_masks=100000 does not fit into the model's context of 256 tokens"),
        ({"n_masks": [1000, 2000]}, "none of the 2 cells can be computed, the first because: n_masks=1000 does not"),
        ({"model_args": {"pretrained": "CHECKPOINT", "max_length": 10**9}}, "max_length must be a whole number from 2"),
        ({"model_args": {"pretrained": "CHECKPOINT", "mask_token_id": 10**6}}, "mask_token_id=1000000 is no token"),
        ({"device": "meta"}, "device=meta is not on this machine"),
    ],
)
def test_what_no_cell_can_do_is_said_before_loading(
    tmp_path: Path, checkpoint: Path, task_folder: Path, settings: dict[str, Any], sentence: str
) -> None:
    weightless = shutil.copytree(checkpoint, tmp_path / "model", ignore=lambda *_: ["model.safetensors"])
    (weightless / "model.safetensors").write_text("not weights at all")
    if "model_args" in settings:
        settings = settings | {"model_args": settings["model_args"] | {"pretrained": str(weightless)}}
    with pytest.raises(OptionError) as error:
        run_here(tmp_path / "out", weightless, task_folder, **settings)
    assert str(error.value).startswith(sentence)
    assert not list((tmp_path / "out").rglob("*.plan"))


def test_a_plan_whose_model_cannot_be_loaded_is_taken_back(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    damaged = shutil.copytree(checkpoint, tmp_path / "model", ignore=lambda *_: ["model.safetensors"])
    (damaged / "model.safetensors").write_text("not weights at all")
    with pytest.raises(OptionError, match="its weights cannot be read"):
        run_here(tmp_path / "out", damaged, task_folder, n_masks=4)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_failing_cells_leave_the_others(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    misfit = adapter(checkpoint, tmp_path / "misfit", seed=1)
    config = json.loads((misfit / "adapter_config.json").read_text())
    (misfit / "adapter_config.json").write_text(json.dumps(config | {"r": 3}))
    (tmp_path / "no_adapter").mkdir()
    peft = [str(misfit), str(tmp_path / "no_adapter"), "none"]
    run = run_here(tmp_path / "out", checkpoint, task_folder, n_masks=4, n_fillers=[500, 0], peft=peft)
    assert len(run.failures) == 5
    messages = (
        ["adapter cannot be read"] * 2 + ["adapter does not fit this model"] * 2 + ["4 masks and 500 filler tokens"]
    )
    for failure, message in zip(run.failures, messages, strict=True):
        assert message in failure
        assert "\n" not in failure
    assert run.report().summary().startswith("1 of 6 cells are done")
    run_here(tmp_path / "alone", checkpoint, task_folder, n_masks=4, n_fillers=0)
    assert stored(tmp_path / "out") == stored(tmp_path / "alone")


def test_autoregressive_models_take_part(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    peft = ["none", str(adapter(checkpoint, tmp_path / "adapter", seed=1))]
    common: dict[str, Any] = {"model": "hf", "device": None, "log_samples": True, "peft": peft, "n_masks": [1, 2]}
    run = run_here(tmp_path / "out", checkpoint, task_folder, tasks="tiny_generate,mdlm_verb_smallest_slot", **common)
    assert len(run.failures) == 2
    assert all("has its masks in the prompt, which only --model mdlm fills" in failure for failure in run.failures)
    said = list(answers(tmp_path / "out").values())
    assert len(said) == 2
    assert said[0] != said[1]
    results = stored(tmp_path / "out").values()
    assert {result["config"]["model"] for result in results} == {"hf"}
    assert not any(str(folder) in json.dumps(result) for result in results for folder in (checkpoint, tmp_path))


def test_results_of_the_built_in_model_name_no_folder_of_this_machine(tmp_path: Path) -> None:
    settings = {"tasks": "mdlm_verb_smallest", "metadata": {"fewshot_distractors": [0, 2], "fewshot_relevant": 1}}
    run = SweepRun(plan(settings | {"limit": 1, "n_masks": 2, "device": "cpu"}), tmp_path)
    run.run()
    assert not run.failures
    results = stored(tmp_path)
    assert list(results) == [
        f"built-in/mdlm_verb_smallest,n_masks=2,fewshot_distractors={n},fewshot_relevant=1/results_cell.json"
        for n in (0, 2)
    ]
    for n, result in zip((0, 2), results.values(), strict=True):
        text = json.dumps(result)
        assert str(default_model_path().parent.parent) not in text
        assert str(tmp_path) not in text
        assert result["model_name"] == result["config"]["mdlm"]["pretrained"] == "built-in"
        assert result["n-shot"]["mdlm_verb_smallest"] == 1 + n
        metadata = result["configs"]["mdlm_verb_smallest"]["metadata"]
        assert metadata["config_source"] == "mdlm_lm_eval/tasks/context/mdlm_verb_smallest.yaml"
        assert result["config"]["mdlm_sweep"]["settings"]["task_suite"]["version"] == "2.0"


def test_the_command_refuses_in_one_sentence(
    tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(tmp_path / "out", checkpoint, task_folder, "--tasks=mdlm_contxt")
    monkeypatch.setattr(sys, "argv", words[2:])
    with pytest.raises(SystemExit) as ended:
        main()
    sentence = "tasks=mdlm_contxt: lm-eval knows no such task or group; did you mean mdlm_context?"
    assert ended.value.code == f"mdlm-sweep: {sentence}"
    assert not (tmp_path / "out").exists()
