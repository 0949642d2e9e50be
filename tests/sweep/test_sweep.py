"""Sweeps at work: what they write, skip, refuse and survive."""

import io
import json
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from filelock import FileLock
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.results import load
from mdlm_lm_eval.results.statistics import difference
from mdlm_lm_eval.sweep import run as sweep_run
from mdlm_lm_eval.sweep.__main__ import main
from mdlm_lm_eval.sweep.claims import table
from mdlm_lm_eval.sweep.plan import plan
from tests.conftest import LM_EVAL_05, edit_json, refused, tasks_of
from tests.support.commands import run
from tests.support.leaderboard_files import result_file

pytestmark = pytest.mark.slow

TIMES = ("pretty_env_info", "date", "total_evaluation_time_seconds", "git_hash", "start_time", "end_time")


class Ended(NamedTuple):
    """A command's exit status and what it printed."""

    code: object
    out: str
    err: str


def words(output: Path, checkpoint: Path, task_folder: Path, *more: str) -> list[str]:
    model = [f"--model_args=pretrained={checkpoint}", f"--include_path={task_folder}", "--batch_size=2", "--device=cpu"]
    return [*model, f"--output_path={output}", "--tasks=tiny_generate", *more]


def sweep(output: Path, checkpoint: Path, task_folder: Path, *more: str) -> Ended:
    """The command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["mdlm-sweep", *words(output, checkpoint, task_folder, *more)])
        if not any("mdlm_" in word for word in more):  # the suite's index takes a second
            patch.setattr("mdlm_lm_eval.tasks_path", lambda: task_folder / "none")
        with pytest.raises(SystemExit) as end:
            main()
    return Ended(end.value.code, out.getvalue(), err.getvalue())


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
        path.parent.relative_to(output).as_posix(): [json.loads(line)["resps"] for line in path.open()]
        for path in sorted(output.rglob("samples_*.jsonl"))
    }


def adapter(checkpoint: Path, folder: Path, seed: int) -> Path:
    """A LoRA adapter of random weights that change what the model says."""
    torch.manual_seed(seed)
    config = LoraConfig(r=2, lora_alpha=64, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(LlamaForCausalLM.from_pretrained(checkpoint), config).save_pretrained(folder)
    return folder


def test_a_cell_is_what_lm_eval_itself_writes(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    more = ("--n_masks=3,6", "--gen_kwargs", "max_gen_toks=3", "--apply_chat_template", "--log_samples")
    ended = sweep(tmp_path / "sweep", checkpoint, task_folder, *more)
    assert ended.code == 0, ended.err
    ((path, result),) = [(p, r) for p, r in stored(tmp_path / "sweep").items() if "n_masks=6" in p]
    ours = result["config"].pop("mdlm_sweep")
    assert ours["command"].startswith(f"lm_eval --model mdlm --model_args pretrained={checkpoint},n_masks=6 --tasks")
    run(*shlex.split(ours["command"]), "--log_samples", "--output_path", str(tmp_path / "plain"))
    (expected,) = stored(tmp_path / "plain").values()
    assert result.keys() == expected.keys()
    for part in ("results", "versions", "n-shot", "n-samples", "higher_is_better", "task_hashes", "model_source"):
        assert result[part] == expected[part], part
    same = ("model", "limit", "batch_size", "gen_kwargs", "random_seed", "torch_seed", "fewshot_seed")
    assert {name: result["config"][name] for name in same} == {name: expected["config"][name] for name in same}
    for part in ("decoding", "likelihood", "explicit_options", "tasks", "weights"):
        assert result["config"]["mdlm"][part] == expected["config"]["mdlm"][part], part
    samples = [
        sorted(next(folder.rglob("samples_*.jsonl")).read_text().splitlines())
        for folder in ((tmp_path / "sweep" / path).parent, tmp_path / "plain")
    ]
    assert samples[0] == samples[1]


def test_the_last_table_has_every_metric(tmp_path: Path) -> None:
    two = {"t": {"acc,none": 0.9, "exact_match,none": 0.4}, "u": {"acc,none": 0.8, "exact_match,none": 0.3}}
    cells = plan({"tasks": "t,tag,v"}).cells
    for cell, metrics in zip(cells, ({"t": two["t"]}, two, {"v": {"word_perplexity,none": 12.5}}), strict=True):
        (tmp_path / cell.name).mkdir(parents=True)
        length = 16 if cell.task == "v" else 8
        content = result_file(metrics, asked=50, passes=100, masks=16, block_length=length)
        (tmp_path / cell.name / "results_cell.json").write_text(json.dumps(content))
    costs = "tokens per pass | tokens per second | memory (GiB)"
    assert table(cells, tmp_path).splitlines() == [
        f"| cell | acc | exact_match | word_perplexity | questions | {costs} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| built-in/t | 90.0 | 40.0 |  | 50 | 1.00 | 100 | 2.00 |",
        "| built-in/tag: t | 90.0 | 40.0 |  | 50 | 1.00 | 100 | 2.00 |",
        "| built-in/tag: u | 80.0 | 30.0 |  | 50 | 1.00 | 100 | 2.00 |",
        "| built-in/v (one block, as any longer) |  |  | 12.5 | 50 | 1.00 | 100 | 2.00 |",
    ], "no errors are known, so that there are no differences"


def test_differences_are_to_the_first_cell_or_the_one_that_is_named(tmp_path: Path) -> None:
    """Half of four questions are right in both of two cells, which differ in one question each way, or in none."""
    cells = plan({"tasks": "t", "steps": "4,2,1"}).cells
    for cell, right in zip(cells, ((1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 0)), strict=True):
        (tmp_path / cell.name).mkdir(parents=True)
        file = result_file({"t": {"acc,none": 0.5, "acc_stderr,none": 0.29}}, asked=4)
        (tmp_path / cell.name / "results_cell.json").write_text(json.dumps(file))
        lines = [{"doc_id": n, "doc_hash": "", "filter": "none", "metrics": ["acc"]} for n in range(4)]
        text = "".join(json.dumps(line | {"acc": one}) + "\n" for line, one in zip(lines, right, strict=True))
        (tmp_path / cell.name / "samples_t_cell.jsonl").write_text(text)
    shares = load(tmp_path, columns="all")["share"]
    assert [one.parts for one in shares] == [shares[0].parts, shares[1].parts, shares[0].parts]
    against = difference(shares[0], shares[1]).scaled(100).signed
    said = table(cells, tmp_path)
    scores = [line.split(" | ")[1] for line in said.splitlines()[2:5]]
    assert scores == [shares[0].interval.scaled(100).in_words, f"50.0, {against}", "50.0, equal"]
    assert said.endswith("Differences in points are from built-in/t,steps=4, paired by question.")
    scores = [line.split(" | ")[1] for line in table(cells, tmp_path, "steps=2").splitlines()[2:5]]
    assert [score.startswith("50.0,") for score in scores] == [True, False, True]


def test_a_larger_limit_replaces_results_and_a_smaller_does_not(
    tmp_path: Path, checkpoint: Path, task_folder: Path
) -> None:
    def limit_after(*more: str) -> tuple[object, Any]:
        ended = sweep(tmp_path, checkpoint, task_folder, "--n_masks=4", *more)
        (result,) = stored(tmp_path).values()
        return ended.code, result["config"]["limit"]

    assert limit_after("--limit=0.5") == (0, 0.5)
    assert limit_after("--limit=2") == (1, 0.5), "a share and a number of questions"
    assert limit_after("--limit=0.9") == (0, 0.9)
    assert limit_after() == (0, None)
    assert limit_after("--limit=3") == (1, None)
    assert not list(tmp_path.rglob("*.old.*"))
    assert sweep(tmp_path, checkpoint, task_folder, "--n_masks=4", "--log_samples").code == 0
    assert len(answers(tmp_path)) == 1, "what has no samples is computed again where they are wanted"


def test_chosen_questions_and_a_cache_of_answers(
    tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted cell goes on: here its result is gone, its answers are not."""
    (tmp_path / "samples.json").write_text('{"tiny_generate": [0, 3]}')
    more = ("--n_masks=4,5", f"--samples={tmp_path / 'samples.json'}", f"--use_cache={tmp_path / 'cache'}")
    assert sweep(tmp_path / "out", checkpoint, task_folder, *more).code == 0
    before = stored(tmp_path / "out")
    for result in before.values():
        assert result["n-samples"]["tiny_generate"]["effective"] == 2
        assert """--samples '{"tiny_generate": [0, 3]}'""" in result["config"]["mdlm_sweep"]["command"]
    monkeypatch.setattr("mdlm_lm_eval.jobs.generation.completions_of", None)
    assert sweep(tmp_path / "again", checkpoint, task_folder, *more).code == 0
    assert {path: result["results"] for path, result in stored(tmp_path / "again").items()} == {
        path: result["results"] for path, result in before.items()
    }
    others = sweep(tmp_path / "out", checkpoint, task_folder, "--n_masks=4")
    assert "samples was {'tiny_generate': [0, 3]} and is None" in others.err


def test_results_of_other_settings_weights_or_tasks_stay(tmp_path: Path, checkpoint: Path) -> None:
    task_folder = tasks_of("tasks", tmp_path / "tasks")
    save_file({"shares": torch.ones(259)}, frequencies := tmp_path / "frequencies")
    more = ("--n_masks=4", "--limit=2", f"--token_frequencies={frequencies}")
    output, more = tmp_path / "out", (*more, f"--peft={adapter(checkpoint, tmp_path / 'a', 1)}")
    sweep(output, checkpoint, task_folder, *more)
    before = stored(output)

    def refused(*changes: str) -> str:
        ended = sweep(output, checkpoint, task_folder, *more, *changes)
        assert ended.code == 1
        assert stored(output) == before
        return ended.err

    assert "(limit was 2.0 and is 1.0); move it" in refused("--limit=1")
    status = sweep(output, checkpoint, task_folder, *more, "--limit=1", "--status").out
    assert "1 cells: 0 done, 0 missing, 1 of other settings" in status
    assert "(model_args was" in refused("--model_args", f"pretrained={checkpoint},dtype=float64")
    assert "(gen_kwargs was {} and is {'max_gen_toks': 3})" in refused("--gen_kwargs", "max_gen_toks=3")
    assert "(system_instruction was None and is Think.)" in refused("--system_instruction=Think.")
    asked = (yaml := task_folder / "tiny_generate.yaml").read_text()
    yaml.write_text(asked.replace("doc_to_text: ", "doc_to_text: Now "))
    assert "(own_task was" in refused()
    yaml.write_text(asked)
    (task_folder / "other.yaml").write_text("task: other\n")
    for path, name in {
        task_folder / "docs.jsonl": "own_task",
        checkpoint / "tokenizer_config.json": "config_and_tokenizer",
        tmp_path / "a" / "adapter_config.json": "adapter_config",
        frequencies: "token_frequencies",
    }.items():
        path.write_bytes((content := path.read_bytes()) + b" ")
        assert f"({name} was" in refused()
        path.write_bytes(content)
    assert sweep(output, checkpoint, task_folder, *more).code == 0
    (result,) = output.rglob("results_cell.json")
    content = result.read_bytes()
    for name, said in {"version": "(package_version was 0", "digest": "another state of mdlm-lm-eval"}.items():
        result.write_bytes(content.replace(b'"package_%b": "' % name.encode(), b'"package_%b": "0' % name.encode()))
        assert said in sweep(output, checkpoint, task_folder, *more).err
    result.write_bytes(content)
    adapter(checkpoint, tmp_path / "a", seed=2)
    assert "(adapter_weights was" in refused()
    renamed = result.rename(result.with_name("renamed.json"))
    assert "holds no result of a sweep" in sweep(output, checkpoint, task_folder, *more).err
    renamed.rename(result)
    assert stored(output) == before


def test_adapters_share_the_weights_and_leave_no_trace(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    one, two = (str(adapter(checkpoint, tmp_path / name, seed)) for name, seed in (("one", 1), ("two", 2)))
    more = ("--n_masks=6", "--log_samples")
    assert sweep(tmp_path / "together", checkpoint, task_folder, f"--peft={one},none,{two}", *more).code == 0
    for peft in (one, "none", two):
        assert sweep(tmp_path / "alone", checkpoint, task_folder, f"--peft={peft}", *more).code == 0
    expected = answers(tmp_path / "alone")
    assert answers(tmp_path / "together") == expected
    assert stored(tmp_path / "together") == stored(tmp_path / "alone")
    assert len({json.dumps(said) for said in expected.values()}) == 3
    assert {result["config"]["mdlm"]["adapter"] for result in stored(tmp_path / "together").values()} == {
        "one",
        None,
        "two",
    }


def test_failing_cells_leave_the_others(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    misfit = adapter(checkpoint, tmp_path / "misfit", seed=1)
    edit_json(misfit / "adapter_config.json", r=3)
    (tmp_path / "no_weights").mkdir()
    shutil.copy(misfit / "adapter_config.json", tmp_path / "no_weights")
    adapters = f"--peft={misfit},{tmp_path / 'no_weights'},none"
    ended = sweep(tmp_path / "out", checkpoint, task_folder, adapters, "--n_masks=4", "--n_fillers=500,0")
    assert ended.code == 1
    *failed, summary = (line for line in ended.err.splitlines() if line.startswith("mdlm-sweep: "))
    assert [line.startswith(f"mdlm-sweep: failed: {checkpoint.name}") for line in failed] == [True] * 5
    assert "4 masks and 500 tokens after them" in failed[-1]
    assert summary.startswith("mdlm-sweep: 1 of 6 cells are done")
    sweep(tmp_path / "alone", checkpoint, task_folder, "--n_masks=4", "--n_fillers=0")
    assert stored(tmp_path / "out") == stored(tmp_path / "alone")


def test_autoregressive_models_take_part(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    adapters = f"--peft=none,{adapter(checkpoint, tmp_path / 'adapter', seed=1)}"
    ended = sweep(tmp_path / "out", checkpoint, task_folder, "--model=hf", "--log_samples", adapters, "--n_masks=1,2")
    assert ended.code == 0, ended.err
    one, two = answers(tmp_path / "out").values()
    assert one != two
    for result in stored(tmp_path / "out").values():
        assert result["config"]["model"] == result["model_source"] == "hf"
        assert result["config"]["mdlm_sweep"]["settings"]["weights"]


def test_what_lm_eval_says_in_each_cell_appears_once_and_git_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["mdlm-sweep", "--tasks=mdlm_sheet", "--steps=2,1", "--limit=1", "--output_path=o"]
    )
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "git" not in capfd.readouterr().err
    assert caplog.text.count("Custom kwargs can be passed") == 1


@pytest.mark.skipif(LM_EVAL_05, reason="lm-eval 0.5.0.dev1 has no TrackioLogger")
def test_cells_are_sent_to_trackio(
    tmp_path: Path, checkpoint: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By lm-eval's own logger, each as a run of its own; a logger that fails costs no result."""
    runs: list[list[Any]] = []
    fake = SimpleNamespace(
        init=lambda **given: runs.append([given]), log=lambda scores, step: runs[-1].append(scores), config={}
    )
    fake.finish = lambda: runs[-1].append("finished")
    monkeypatch.setitem(sys.modules, "trackio", fake)
    more = ("--n_masks=3,4", "--trackio_args", "project=mine")
    assert sweep(tmp_path / "sent", checkpoint, task_folder, *more).code == 0
    names = [f"{checkpoint.name}/tiny_generate,n_masks={n}" for n in (3, 4)]
    assert [run[0] for run in runs] == [{"name": name, "project": "mine"} for name in names]
    assert all("tiny_generate/exact_match" in run[1] and run[2] == "finished" for run in runs)
    fake.init = lambda **given: 1 / 0
    failed = sweep(tmp_path / "unsent", checkpoint, task_folder, *more)
    assert failed.code == 0
    assert failed.err.count("TrackioLogger failed: ZeroDivisionError") == 2


def test_processes_take_a_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_run.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=f"gpu{n}"))
    locks: list[FileLock] = []
    monkeypatch.setattr(sweep_run, "_gpu_locks", locks)
    assert [sweep_run.own_device({}) for _ in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    locks.pop().release()
    assert sweep_run.own_device({}) == "cuda:1"
    assert sweep_run.own_device({"parallelize": True}) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sweep_run, "best_device", lambda: "mps")
    assert sweep_run.own_device({}) == "mps"
    for lock in locks:
        lock.release()


@pytest.mark.parametrize(("more", "sentence"), refused("mdlm-sweep"))
def test_the_command_refuses_in_one_sentence(
    tmp_path: Path, checkpoint: Path, task_folder: Path, more: list[str], sentence: str
) -> None:
    ended = sweep(tmp_path / "out", checkpoint, task_folder, *more)
    assert ended.code not in (0, None)
    assert f"mdlm-sweep: {sentence}" in ended.err + str(ended.code)
    assert not (tmp_path / "out").exists()


def test_no_cell_runs_where_one_cannot(tmp_path: Path, checkpoint: Path, task_folder: Path) -> None:
    for shard in ("0/1", "0/2"):  # of which the second holds the cell that could run
        more = ("--n_masks=4", "--cache=none,dual", f"--shard={shard}")
        ended = sweep(tmp_path / "out", checkpoint, task_folder, *more)
        assert (ended.code, "cache=dual needs block_length" in ended.err) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_tasks_of_lm_eval")
@pytest.mark.parametrize(("task", "option", "sentence"), refused("likelihoods of a sweep"))
def test_likelihoods_that_cannot_be_computed_are_refused_before_anything_is_generated(
    tmp_path: Path,
    checkpoint: Path,
    task_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    option: str,
    sentence: str,
) -> None:
    monkeypatch.setattr(MDLM, "generate_until", lambda *_, **__: pytest.fail("something was generated"))
    (tmp_path / "mixed.yaml").write_text(json.dumps({"group": "mixed", "task": ["tiny_generate", task]}))
    for path in task_folder.iterdir():
        shutil.copy(path, tmp_path)
    ended = sweep(tmp_path / "out", checkpoint, tmp_path, "--tasks=mixed", option)
    assert ended.code == 2
    assert sentence in ended.err
    assert stored(tmp_path / "out") == {}
