"""`mdlm-attribution` as a user types it, on a few questions of a few tasks."""

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval import tasks_path
from mdlm_lm_eval.analyses import inputs
from mdlm_lm_eval.analyses.__main__ import main
from mdlm_lm_eval.analyses.report import Report, over_tasks
from tests.conftest import tiny_tokenizer

TASKS = "mdlm_animal_smallest,mdlm_verb_largest"
FEW_EXAMPLES = ("--metadata", "fewshot_relevant=2", "fewshot_distractors=3")


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-attribution", *map(str, words)])
    monkeypatch.setattr(inputs, "tasks_path", lambda: tasks_path() / "context")  # all of it takes a second to index
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


def test_groups_and_a_stopped_run_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["groups", "--tasks", TASKS, "--n_masks=7", "--limit=1", *FEW_EXAMPLES, "--device=cpu"]
    whole, resumed = (tmp_path / name / "attribution_groups" for name in ("whole", "resumed"))
    call(monkeypatch, *words, f"--output_path={whole.parent}")
    rows = table(whole.with_suffix(".csv"))
    assert {row["group"] for row in rows} == {"masks", "last 50 non-masks", "all non-masks"}
    assert len(rows) == 2 * 3
    assert all(row["n_masks"] == "7" and 0 < float(row["gradient"]) <= 1 for row in rows)
    content = json.loads(whole.with_suffix(".json").read_text())
    assert content["command"].startswith("mdlm-attribution groups --tasks mdlm_animal_smallest")
    assert content["settings"]["pretrained"] == "built-in"
    said = capsys.readouterr().out
    for group in content["summary"]["groups"]:
        values = [float(row["gradient"]) for row in rows if row["group"] == group["group"]]
        assert group["gradient"] == pytest.approx(sum(values) / len(values))
        assert f"{group['group']}: {group['gradient']:.3f} ±" in said

    def stop_after_one(self: Report, task: str, rows: Any, add: Any = Report.add) -> None:
        add(self, task, rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Report, "add", stop_after_one)
        with pytest.raises(SystemExit, match="130"):
            call(interrupted, *words, f"--output_path={resumed.parent}")
    assert len(json.loads(resumed.with_suffix(".json").read_text())["finished_tasks"]) == 1
    call(monkeypatch, *words, f"--output_path={resumed.parent}")
    assert whole.with_suffix(".csv").read_text() == resumed.with_suffix(".csv").read_text()
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, *words, "--limit=2", f"--output_path={resumed.parent}")
    assert "was made with limit=1, not 2; name another --output_path" in capsys.readouterr().err
    assert whole.with_suffix(".csv").read_text() == resumed.with_suffix(".csv").read_text()


def test_an_autoregressive_model(
    tmp_path: Path, autoregressive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model=hf", f"--model_args=pretrained={autoregressive},dtype=float64"]
    words = [*model, "--tasks=mdlm_animal_smallest", "--limit=2", *FEW_EXAMPLES, "--device=cpu"]
    call(monkeypatch, "examples", *words, "--reorderings=3", f"--output_path={tmp_path}")
    rows = table(tmp_path / "attribution_examples.csv")
    order = [(str(reordering), str(place)) for reordering in range(3) for place in range(1, 6)]
    assert [(row["reordering"], row["place"]) for row in rows] == order
    for reordering in range(3):
        kinds = [row["example"] for row in rows if row["reordering"] == str(reordering)]
        assert sorted(kinds) == ["distractor"] * 3 + ["relevant"] * 2
    assert {(row["n_masks"], row["questions"]) for row in rows} == {("0", "2")}
    assert (tmp_path / "attribution_examples.png").stat().st_size > 1000
    assert autoregressive.name in (tmp_path / "attribution_examples.svg").read_text()
    call(monkeypatch, "groups", *words, f"--output_path={tmp_path}")
    groups = {row["group"] for row in table(tmp_path / "attribution_groups.csv")}
    assert groups == {"last 50 non-masks", "all non-masks"}
    LlamaForCausalLM(LlamaConfig.from_pretrained(autoregressive)).save_pretrained(autoregressive)
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, "groups", *words, f"--output_path={tmp_path}")
    assert "was made with weights=" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["groups", "--n_masks=0"], "argument --n_masks: invalid count value: '0'"),
        (
            ["groups", "--n_masks=3000", "--tasks=mdlm_animal_smallest", "--limit=1"],
            "3000 masks .* do not fit into the model's context of 2048 tokens",
        ),
        (["groups", "--tasks=mdlm_contxt"], "tasks=mdlm_contxt: must be one of the few-shot suite's tasks"),
        (["groups", "--model=hf", "--model_args=pretrained=x", "--n_masks=5"], "autoregressive models have no masks"),
        (["examples", "--tasks=mdlm_animal_smallest"], "needs n_masks, as its prompts hold no mask"),
        (["confidence", "--model=hf"], "is not for model=hf: autoregressive models have no masks"),
        (["shots-against-masks", "/nowhere", "--shots=25,5"], "argument --shots: invalid few_and_many value: '25,5'"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_written(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, *words, f"--output_path={output}")
    assert stop.value.code == 2
    assert re.search(f"mdlm-attribution.*: .*{sentence}", capsys.readouterr().err)
    assert not output.exists()


def test_tasks_count_the_same_however_many_rows_they_have() -> None:
    rows = [{"task": "a", "g": 1, "x": 1.0}, {"task": "a", "g": 1, "x": 3.0}, {"task": "b", "g": 1, "x": 6.0}]
    (summary,) = over_tasks(rows, "x", ["g"])
    assert summary["x"] == 4.0
    assert summary["band"] == pytest.approx(12.7062 * 2 * 2**0.5 / 2**0.5, rel=1e-4)
    assert over_tasks(rows[:2], "x", ["g"])[0]["band"] is None
