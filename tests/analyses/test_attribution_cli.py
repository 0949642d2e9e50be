"""Analyses as a user runs them: on questions of a few tasks, on traces, and on result files."""

import csv
import json
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from lm_eval.loggers import EvaluationTracker
from transformers import LlamaConfig, LlamaForCausalLM

from mdlm_lm_eval import __version__, tasks_path
from mdlm_lm_eval.analyses.__main__ import main
from mdlm_lm_eval.analyses.order import calibration, order_by_model, order_of, read_orders
from mdlm_lm_eval.analyses.report import Report, over_tasks
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import data, edit_json, evaluate, refused
from tests.support import leaderboard_files

TASKS = "mdlm_animal_smallest,mdlm_verb_largest"
FEW_EXAMPLES = ("--metadata", "fewshot_relevant=2", "fewshot_distractors=3")


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["mdlm-attribution", *map(str, words)])
    monkeypatch.setattr("mdlm_lm_eval.tasks_path", lambda: tasks_path() / "context")
    main()


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def autoregressive(long_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model with the tiny tokenizer."""
    folder = shutil.copytree(long_checkpoint, tmp_path_factory.mktemp("autoregressive") / "model")
    edit_json(folder / "config.json", is_causal=True)
    return folder


def test_groups_and_a_stopped_run_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["groups", "--tasks", TASKS, "--n_masks=7", "--limit=1", *FEW_EXAMPLES, "--device=cpu"]
    whole, resumed = (tmp_path / name / "attribution_groups" for name in ("whole", "resumed"))
    call(monkeypatch, *words, f"--output_path={whole.parent}")
    rows = table(whole.with_suffix(".csv"))
    assert {row["group"] for row in rows} == {"masks", "other masks", "last 50 non-masks", "all non-masks"}
    assert len(rows) == 2 * 4
    assert all(row["n_masks"] == "7" and 0 < float(row["gradient"]) <= 1 for row in rows)
    content = json.loads(whole.with_suffix(".json").read_text())
    assert content["command"].startswith("mdlm-attribution groups --tasks mdlm_animal_smallest")
    assert {"pretrained": "built-in", "package_version": __version__}.items() <= content["settings"].items()
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
    call(monkeypatch, "groups", *words, f"--output_path={tmp_path}")
    groups = {row["group"] for row in table(tmp_path / "attribution_groups.csv")}
    assert groups == {"last 50 non-masks", "all non-masks"}
    edit_json(autoregressive / "tokenizer_config.json", changed=True)
    with pytest.raises(SystemExit, match="2"):
        call(monkeypatch, "groups", *words, f"--output_path={tmp_path}")
    assert "was made with config_and_tokenizer=" in capsys.readouterr().err
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


@pytest.mark.parametrize(("words", "sentence"), refused("mdlm-attribution"))
def test_bad_input_is_one_sentence_before_anything_is_written(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, *words.split(), f"--output_path={output}")
    assert stop.value.code == 2
    assert re.search(f"mdlm-attribution.*: .*{re.escape(sentence)}", capsys.readouterr().err)
    assert not output.exists()


def test_tasks_count_the_same_however_many_rows_they_have() -> None:
    rows = [{"task": "a", "g": 1, "x": 1.0}, {"task": "a", "g": 1, "x": 3.0}, {"task": "b", "g": 1, "x": 6.0}]
    (summary,) = over_tasks(rows, "x", ["g"])
    assert summary["x"] == 4.0
    assert summary["band"] == pytest.approx(12.7062 * 2 * 2**0.5 / 2**0.5, rel=1e-4)
    assert over_tasks(rows[:2], "x", ["g"])[0]["band"] is None


def traced(words: list[str], steps: list[int], confidence: float = 0.5) -> dict[str, Any]:
    """As a result holds it, of an answer whose tokens are these words."""
    ends = [len("".join(words[: n + 1])) for n in range(len(words))]
    columns = {"ends": ends, "steps": steps, "confidence": [confidence] * len(words), "edits": [0] * len(words)}
    text = {name: " ".join(map(str, column)) for name, column in columns.items()}
    return {"doc_id": 0, "text": "".join(words), **text}


def test_tau_is_kendalls() -> None:
    for seed in range(20):
        steps = random.Random(seed).sample(range(1, 9), 8)
        tau = order_of(traced(list("abcdefgh"), steps))["tau"]
        assert tau == pytest.approx(scipy.stats.kendalltau(range(8), steps).statistic)
    # In one pass there is no order.
    for steps, tau in {(1, 2, 3, 4): 1, (4, 3, 2, 1): -1, (1, 1, 2, 2): 1, (1, 1, 1, 1): None}.items():
        assert order_of(traced(list("abcd"), list(steps)))["tau"] == tau


@pytest.mark.parametrize(("words", "steps", "first"), data("cases.json")["numbers before reasoning"])
def test_the_last_number_before_the_reasoning(words: list[str], steps: list[int], first: int | None) -> None:
    """Half of a number is no answer."""
    assert order_of(traced(words, steps))["number_first"] == first


def test_calibration_of_known_confidences() -> None:
    sure = [{"model": "m", "confidence": 0.95, "correct": float(n < 9)} for n in range(10)]
    unsure = [{"model": "m", "confidence": 0.25, "correct": float(n < 3)} for n in range(4)]
    low, high = calibration(sure + unsure)
    assert (low["answers"], low["correct"], high["answers"], high["correct"]) == (4, 0.75, 10, 0.9)
    assert low["error"] == high["error"] == pytest.approx((4 * 0.5 + 10 * 0.05) / 14)


def test_tau_of_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for unmasking in ("left_to_right", "random"):
        lm = MDLM(trace=True, unmasking=unmasking, batch_size=4)
        result = evaluate(lm, ["mdlm_reversal_as_given"], limit=4)
        tracker = EvaluationTracker(output_path=str(tmp_path / unmasking))
        samples = result.pop("samples")
        tracker.save_results_aggregated(results=result, samples=samples)
        tracker.save_results_samples("mdlm_reversal_as_given", samples["mdlm_reversal_as_given"])
    rows = read_orders([tmp_path])
    assert len(rows) == 8
    tau = {row["model"]: row["tau"] for row in order_by_model(rows)["tau"]}
    assert sorted(value == 1 for value in tau.values()) == [False, True]
    assert all(row["correct"] in (0, 1) and 0 < row["confidence"] < 1 for row in rows)
    call(monkeypatch, "order", tmp_path, "--output_path", tmp_path / "out")
    assert re.search(r"left_to_right.*: Kendall's tau with left to right 1\.000", capsys.readouterr().out)
    assert {path.suffix for path in (tmp_path / "out").glob("order.*")} == {".csv", ".json", ".png", ".svg"}
    for path in tmp_path.rglob("results_*.json"):
        path.write_text(path.read_text().replace('"repeats": 1', '"repeats": 2'))
    assert {row["correct"] for row in read_orders([tmp_path])} == {None}  # a question has one score for all answers


def test_results_without_a_trace_say_how_to_get_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(leaderboard_files.gsm8k_file()))
    with pytest.raises(OptionError, match="trace=true"):
        read_orders([path])
