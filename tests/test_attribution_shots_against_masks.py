"""Gain from shots against loss to masks, read from result files of lm-eval."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from mdlm_lm_eval.analyses.__main__ import main
from mdlm_lm_eval.analyses.shots_against_masks import by_model, gains_and_losses, read_scores
from mdlm_lm_eval.options import OptionError

SHOTS, MASKS = (5, 25), (1, 200)
TASKS = ("t0", "t1", "t2", "t3")
FEW, MANY, DISTRACTED = (0.4, 0.5, 0.6, 0.7), (0.9, 0.7, 0.65, 0.9), (0.5, 0.6, 0.7, 0.85)


def result_file(
    shots: int, n_masks: int, accuracies: tuple[float, ...], questions: int = 100, **mdlm: Any
) -> dict[str, Any]:
    """As lm-eval writes it, as far as it is read."""
    options = {"n_masks": n_masks, "seed": 1234}
    settings = {
        "pretrained": "some/model",
        "adapter": None,
        "explicit_options": ["n_masks"],
        "decoding": {"n_masks": n_masks},
        "settings": [{"request_type": "generate_until", "options": options, "tasks": list(TASKS)}],
        "tasks": {task: {"masks": [n_masks, n_masks + 7], "asked_masks": [n_masks, n_masks]} for task in TASKS},
    }
    return {
        "results": {task: {"exact_match,none": accuracy} for task, accuracy in zip(TASKS, accuracies, strict=True)},
        "n-samples": {task: {"original": 1000, "effective": questions} for task in TASKS},
        "n-shot": dict.fromkeys(TASKS, shots),
        "configs": {task: {} for task in TASKS},
        "versions": dict.fromkeys(TASKS, "1"),
        "lm_eval_version": "0.4.13",
        "config": {"model": "mdlm", "mdlm": settings | mdlm},
    }


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def complete(**mdlm: Any) -> dict[str, Any]:
    return {
        "few": result_file(5, 1, FEW, **mdlm),
        "many": result_file(25, 1, MANY, **mdlm),
        "distracted": result_file(25, 200, DISTRACTED, **mdlm),
    }


def test_one_row_per_task_and_pearsons_r(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a" / "b", **complete(), of_no_use=result_file(5, 200, FEW))
    words = ["mdlm-attribution", "shots-against-masks", str(tmp_path / "a"), f"--output_path={tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", words)
    main()
    content = json.loads((tmp_path / "out" / "shots_against_masks.json").read_text())
    rows, (summary,) = content["rows"], content["summary"]["models"]
    assert content["settings"] == {"results": ["a"], "shots": [5, 25], "masks": [1, 200]}
    assert "loss from 1 to 200 masks (points)" in (tmp_path / "out" / "shots_against_masks.svg").read_text()
    assert [row["task"] for row in rows] == list(TASKS)
    gains, losses = np.subtract(MANY, FEW), np.subtract(MANY, DISTRACTED)
    assert [row["gain"] for row in rows] == pytest.approx(gains)
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    assert summary["pearson_r"] == pytest.approx(np.corrcoef(gains, losses)[0, 1])
    assert (summary["model"], summary["tasks"]) == ("some/model", 4)
    for name, values in (("gain", gains), ("loss", losses)):
        low, high = scipy.stats.t.interval(0.95, 3, loc=np.mean(values), scale=scipy.stats.sem(values))
        assert (summary[name], summary[f"{name}_band"]) == pytest.approx((np.mean(values), (high - low) / 2))


def test_models_adapters_and_decoding_settings_stay_apart(tmp_path: Path) -> None:
    write(tmp_path / "plain", **complete())
    write(tmp_path / "adapted", **complete(adapter="/me/out/adapter"))
    files = complete(pretrained="/somewhere/model", explicit_options=["n_masks", "steps"])
    for content in files.values():
        content["config"]["mdlm"]["settings"][0]["options"]["steps"] = 40
    write(tmp_path / "steps", **files)
    summary = by_model(gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS))
    assert [row["model"] for row in summary] == ["model steps=40", "some/model", "some/model+adapter"]


def test_what_is_undefined_is_none(tmp_path: Path) -> None:
    files = complete() | {"distracted": result_file(25, 200, MANY)}
    rows = gains_and_losses(read_scores([write(tmp_path, **files)]), shots=SHOTS, masks=MASKS)
    assert by_model(rows)[0]["pearson_r"] is None
    assert by_model(rows[:2])[0]["pearson_r"] is None
    (summary,) = by_model(rows[:1])
    assert (summary["gain"], summary["gain_band"], summary["loss_band"]) == (pytest.approx(0.5), None, None)


def test_other_files_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    autoregressive = result_file(5, 1, FEW)
    del autoregressive["config"]["mdlm"]
    write(tmp_path, **complete(), truncated='{"results": {', of_hf=autoregressive)
    assert len(gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)) == 4
    said = capsys.readouterr().err
    assert f"left out {tmp_path / 'truncated.json'}: " in said
    assert f"left out {tmp_path / 'of_hf.json'}: is no result of --model mdlm" in said


def of_suite(shots: int, n_masks: int, accuracies: tuple[float, ...], **changes: Any) -> dict[str, Any]:
    """A file of the suite's tasks with all examples relevant; `changes` are the suite's settings."""
    content = result_file(shots, n_masks, accuracies)
    settings = {"fewshot_relevant": shots, "fewshot_distractors": 0, "fewshot_seed": 1} | changes
    return content | {"configs": {task: {"metadata": settings} for task in TASKS}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"versions": dict.fromkeys(TASKS, "2")}, "version of model some/model, task t0: 2 and 1"),
        ({"config": result_file(5, 1, FEW, weights="abc")["config"]}, "weights of model some/model: abc and nan"),
        (of_suite(5, 1, FEW, fewshot_seed=2), "fewshot_seed of model some/model, task t0: 2 and 1"),
        (
            of_suite(25, 1, MANY, fewshot_distractors=20),
            "fewshot_distractors of model some/model, task t0, shots 25: 20 and 0",
        ),
    ],
)
def test_what_was_made_under_other_conditions_does_not_mix(changes: Any, said: str, tmp_path: Path) -> None:
    files = {"few": of_suite(5, 1, FEW), "many": of_suite(25, 1, MANY), "masked": of_suite(25, 200, DISTRACTED)}
    of_no_use = of_suite(50, 1, MANY, fewshot_seed=2)  # which no row needs
    whole = write(tmp_path / "a", **files, of_no_use=of_no_use)
    assert len(gains_and_losses(read_scores([whole]), shots=SHOTS, masks=MASKS)) == 4
    beside = write(tmp_path / "b", **files, beside=of_suite(5, 1, FEW) | changes)  # even if the accuracies agree
    with pytest.raises(OptionError, match=rf"\.json do not compare \({re.escape(said)}\); leave"):
        gains_and_losses(read_scores([beside]), shots=SHOTS, masks=MASKS)


def test_files_that_disagree_are_both_named(tmp_path: Path) -> None:
    write(tmp_path / "a", **complete(), other=result_file(5, 1, (0.1, *FEW[1:])))
    with pytest.raises(
        OptionError, match=r"few\.json and other\.json do not compare \(score of model some/model, task t0, shots 5"
    ):
        gains_and_losses(read_scores([tmp_path / "a"]), shots=SHOTS, masks=MASKS)
    write(tmp_path / "b", **complete() | {"many": result_file(25, 1, MANY, questions=7)})
    with pytest.raises(OptionError, match=r"distracted\.json and many\.json do not compare \(n of .*: 100 and 7\)"):
        gains_and_losses(read_scores([tmp_path / "b"]), shots=SHOTS, masks=MASKS)
    with pytest.raises(OptionError, match=r"found are 5 shots with 1 masks; 25 shots with 1 masks"):
        gains_and_losses(read_scores([tmp_path / "b"]), shots=SHOTS, masks=(1, 7))
