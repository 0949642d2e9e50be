"""`mdlm-attribution` as a user types it, on a few questions of a few tasks."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval.analyses.__main__ import main
from mdlm_lm_eval.analyses.output import Report, over_tasks
from mdlm_lm_eval.options import OptionError
from tests.commands import ENVIRONMENT
from tests.conftest import tiny_tokenizer
from tests.test_attribution_shots_against_masks import DISTRACTED, FEW, MANY, result_file, write

TASKS = "mdlm_animal_smallest,mdlm_verb_largest"
FEW_EXAMPLES = ("--metadata", "fewshot_relevant=2", "fewshot_distractors=3")


def start(output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mdlm_lm_eval.analyses",
        *words,
        "--device",
        "cpu",
        "--output_path",
        str(output),
    ]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-attribution", *map(str, words)])
    main()


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def autoregressive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model with the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("autoregressive")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=259, max_position_embeddings=1024, initializer_range=0.3, pad_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_groups_of_the_built_in_model_and_what_is_written(tmp_path: Path) -> None:
    words = ["groups", "--tasks", TASKS, "--n_masks", "7", "--limit", "2", *FEW_EXAMPLES]
    done = start(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "4/4" in done.stderr
    rows = table(tmp_path / "attribution_groups.csv")
    assert len(rows) == 2 * 2 * 3
    assert {row["group"] for row in rows} == {"masks", "last 50 non-masks", "all non-masks"}
    assert all(row["n_masks"] == "7" and 0 < float(row["gradient"]) <= 1 for row in rows)
    content = json.loads((tmp_path / "attribution_groups.json").read_text())
    assert content["command"].startswith("mdlm-attribution groups --tasks mdlm_animal_smallest")
    assert content["settings"]["pretrained"] == "built-in"
    assert content["settings"]["task_suite"].keys() == {"version", "sha256"}
    assert content["versions"].keys() >= {"mdlm-lm-eval", "torch", "transformers", "python"}
    for group in content["summary"]["groups"]:
        values = [float(row["gradient"]) for row in rows if row["group"] == group["group"]]
        assert group["gradient"] == pytest.approx(sum(values) / len(values))
        assert f"{group['group']}: {group['gradient']:.3f} ±" in done.stdout


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["groups", "--tasks", TASKS, "--n_masks=2", "--limit=1", *FEW_EXAMPLES, "--device=cpu"]
    call(monkeypatch, *words, f"--output_path={tmp_path / 'whole'}")
    write_report = Report.add

    def stop_after_one(self: Report, task: str, rows: Any) -> None:
        write_report(self, task, rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Report, "add", stop_after_one)
        with pytest.raises(SystemExit, match="130"):
            call(interrupted, *words, f"--output_path={tmp_path / 'resumed'}")
    partial = json.loads((tmp_path / "resumed" / "attribution_groups.json").read_text())
    assert len(partial["finished_tasks"]) == 1
    call(monkeypatch, *words, f"--output_path={tmp_path / 'resumed'}")
    whole, resumed = ((tmp_path / name / "attribution_groups.csv").read_text() for name in ("whole", "resumed"))
    assert whole == resumed
    with pytest.raises(SystemExit, match="was made with limit=1, not 2; name another --output_path"):
        call(monkeypatch, *words, "--limit=2", f"--output_path={tmp_path / 'resumed'}")
    assert (tmp_path / "resumed" / "attribution_groups.csv").read_text() == whole


def test_examples_of_an_autoregressive_model(
    tmp_path: Path, autoregressive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ["--model=hf", f"--model_args=pretrained={autoregressive},dtype=float64"]
    words = [*model, "--tasks=mdlm_animal_smallest", "--limit=2", *FEW_EXAMPLES, "--device=cpu"]
    call(monkeypatch, "examples", *words, "--reorderings=3", f"--output_path={tmp_path}")
    rows = table(tmp_path / "attribution_examples.csv")
    assert [(row["reordering"], row["place"]) for row in rows] == [
        (str(reordering), str(place)) for reordering in range(3) for place in range(1, 6)
    ]
    for reordering in range(3):
        kinds = [row["example"] for row in rows if row["reordering"] == str(reordering)]
        assert sorted(kinds) == ["distractor"] * 3 + ["relevant"] * 2
    assert {(row["n_masks"], row["questions"]) for row in rows} == {("0", "2")}
    assert (tmp_path / "attribution_examples.png").stat().st_size > 1000
    svg = (tmp_path / "attribution_examples.svg").read_text()
    assert "gradient norm (largest = 1)" in svg
    assert autoregressive.name in svg
    call(monkeypatch, "groups", *words, f"--output_path={tmp_path}")
    assert {row["group"] for row in table(tmp_path / "attribution_groups.csv")} == {
        "last 50 non-masks",
        "all non-masks",
    }


def test_confidence_against_the_mask_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--tasks", TASKS, "--n_masks=1,5", "--limit=2", *FEW_EXAMPLES, "--device=cpu"]
    call(monkeypatch, "confidence", *words, f"--output_path={tmp_path}")
    rows = table(tmp_path / "confidence.csv")
    assert len(rows) == 2 * 2 * 2
    assert {row["n_masks"] for row in rows} == {"1", "5"}
    assert all(0 < float(row["confidence"]) <= 1 and float(row["entropy"]) >= 0 for row in rows)
    assert all(row["correct"] == str(int(row["predicted"] == row["answer"])) for row in rows)
    svg = (tmp_path / "confidence.svg").read_text()
    assert "entropy (nats)" in svg
    assert "probability of the greedy token" in svg


def test_shots_against_masks_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a": result_file(5, 1, FEW), "b": result_file(25, 1, MANY), "c": result_file(25, 200, DISTRACTED)}
    results = write(tmp_path / "results", **files)
    call(monkeypatch, "shots-against-masks", results, "--output_path", tmp_path / "out")
    assert len(table(tmp_path / "out" / "shots_against_masks.csv")) == 4
    content = json.loads((tmp_path / "out" / "shots_against_masks.json").read_text())
    assert content["settings"] == {"results": ["results"], "shots": [5, 25], "masks": [1, 200]}
    assert content["summary"]["models"][0]["tasks"] == 4
    svg = (tmp_path / "out" / "shots_against_masks.svg").read_text()
    assert "loss from 1 to 200 masks (points)" in svg


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["groups", "--n_masks=0"], "n_masks must be a whole number from 1, not 0"),
        (["groups", "--n_masks=many"], "n_masks must be a whole number from 1, not many"),
        (["groups", "--n_masks=3000"], "3000 masks .* do not fit into the model's context of 2048 tokens"),
        (["groups", "--tasks=mdlm_contxt"], "tasks=mdlm_contxt: must be one of the few-shot suite's tasks"),
        (["groups", "--batch_size=0"], "batch_size must be auto or a whole number from 1 up to 999999999, not 0"),
        (["groups", "--model=hf"], "model=hf needs pretrained"),
        (["groups", "--model=hf", "--model_args=pretrained=x", "--n_masks=5"], "autoregressive models have no masks"),
        (["groups", "--model_args=pretraned=x"], "pretraned=x; did you mean pretrained"),
        (["groups", "--model_args=dtype=float7"], "dtype must be one of auto, float32, bfloat16, float16, not float7"),
        (
            ["groups", "--model_args=mask_token_id=last"],
            "mask_token_id must be none or a whole number from 0, not last",
        ),
        (
            ["groups", "--model_args=shift_logits=left"],
            "shift_logits must be true or false, not left",
        ),
        (["groups", "--device=abacus"], "device=abacus is not on this machine; it must be"),
        (["groups", "--model_args=pretrained=/nowhere/at/all"], "pretrained=/nowhere/at/all"),
        (["examples", "--reorderings=0"], "reorderings must be a whole number from 1 up to 100000, not 0"),
        (["examples", "--tasks=mdlm_context"], "needs n_masks, as its prompts hold no mask"),
        (["confidence", "--model=hf"], "model must be mdlm, not hf: autoregressive models have no masks"),
        (["confidence", "--n_masks=1,,2"], "n_masks must be a whole number from 1, not ''"),
        (["shots-against-masks", "/nowhere"], "/nowhere: no such file or folder"),
        (
            ["shots-against-masks", "/nowhere", "--shots=25,5"],
            "shots must be two whole numbers with a comma between them, the smaller first, not 25,5",
        ),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_written(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit, match=sentence) as stop:
        call(monkeypatch, *words, f"--output_path={output}")
    assert "\n" not in str(stop.value)
    assert not output.exists()


def test_rows_of_other_weights_are_not_continued(
    tmp_path: Path, autoregressive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = shutil.copytree(autoregressive, tmp_path / "checkpoint")
    model = ["--model=hf", f"--model_args=pretrained={checkpoint}", "--device=cpu"]
    words = ["groups", *model, "--tasks=mdlm_animal_smallest", "--limit=1", *FEW_EXAMPLES, f"--output_path={tmp_path}"]
    call(monkeypatch, *words)
    before = (tmp_path / "attribution_groups.json").read_text()
    LlamaForCausalLM(LlamaConfig.from_pretrained(checkpoint)).save_pretrained(checkpoint)
    with pytest.raises(SystemExit, match="is in the way: it was made with weights="):
        call(monkeypatch, *words)
    assert (tmp_path / "attribution_groups.json").read_text() == before


def test_a_file_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "confidence.json").write_text('{"half": ')
    with pytest.raises(OptionError, match=r"confidence\.json is in the way: it is no result of this analysis"):
        Report(tmp_path, "confidence", {})
    assert (tmp_path / "confidence.json").read_text() == '{"half": '


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match=r"output_path .*file cannot be written: File exists"):
        call(monkeypatch, "groups", f"--output_path={tmp_path / 'file'}", "--limit=1", "--device=cpu", *FEW_EXAMPLES)
    assert (tmp_path / "file").read_text() == "mine"


def test_tasks_count_the_same_however_many_rows_they_have() -> None:
    rows = [{"task": "a", "g": 1, "x": 1.0}, {"task": "a", "g": 1, "x": 3.0}, {"task": "b", "g": 1, "x": 6.0}]
    (summary,) = over_tasks(rows, "x", ["g"])
    assert summary["x"] == 4.0
    assert summary["band"] == pytest.approx(12.7062 * 2 * 2**0.5 / 2**0.5, rel=1e-4)
    assert over_tasks(rows[:2], "x", ["g"])[0]["band"] is None
