"""Gain from shots against loss to masks, read from result files of lm-eval."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from mdlm_lm_eval.analyses.shots_against_masks import by_model, gains_and_losses, read_scores
from mdlm_lm_eval.options import OptionError

SHOTS, MASKS = (5, 25), (1, 200)
TASKS = ("t0", "t1", "t2", "t3")
FEW, MANY, DISTRACTED = (0.4, 0.5, 0.6, 0.7), (0.9, 0.7, 0.65, 0.9), (0.5, 0.6, 0.7, 0.85)


def result_file(
    shots: int, n_masks: int, accuracies: tuple[float, ...], questions: int = 100, **mdlm: Any
) -> dict[str, Any]:
    """As lm-eval writes it, as far as it is read."""
    settings = {
        "pretrained": "some/model",
        "adapter": None,
        "explicit_options": ["n_masks"],
        "decoding": {"n_masks": n_masks},
        "tasks": {task: {"masks": [n_masks, n_masks]} for task in TASKS},
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


def test_a_block_diffusion_model_has_the_masks_that_were_asked_for(tmp_path: Path) -> None:
    files = complete()
    for content in files.values():
        for record in content["config"]["mdlm"]["tasks"].values():
            asked = record["masks"][0]
            record |= {"masks": [asked, asked + 7], "masks_in_block": [1, 8], "returned_tokens": [1, 1]}
    rows = gains_and_losses(read_scores([write(tmp_path, **files)]), shots=SHOTS, masks=MASKS)
    assert [row["task"] for row in rows] == list(TASKS)


def test_one_row_a_task_and_pearsons_r(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b", **complete(), of_no_use=result_file(5, 200, FEW))
    rows = gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)
    assert [row["task"] for row in rows] == list(TASKS)
    gains, losses = np.subtract(MANY, FEW), np.subtract(MANY, DISTRACTED)
    assert [row["gain"] for row in rows] == pytest.approx(gains)
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    (summary,) = by_model(rows)
    assert summary["pearson_r"] == pytest.approx(np.corrcoef(gains, losses)[0, 1])
    assert (summary["model"], summary["tasks"]) == ("some/model", 4)
    for name, values in (("gain", gains), ("loss", losses)):
        low, high = scipy.stats.t.interval(0.95, 3, loc=np.mean(values), scale=scipy.stats.sem(values))
        assert (summary[name], summary[f"{name}_band"]) == pytest.approx((np.mean(values), (high - low) / 2))


def test_a_single_task_has_no_band(tmp_path: Path) -> None:
    rows = gains_and_losses(read_scores([write(tmp_path, **complete())]), shots=SHOTS, masks=MASKS)
    (summary,) = by_model(rows[:1])
    assert (summary["gain"], summary["gain_band"], summary["loss_band"]) == (pytest.approx(0.5), None, None)


def test_models_adapters_and_decoding_settings_stay_apart(tmp_path: Path) -> None:
    write(tmp_path / "plain", **complete())
    write(tmp_path / "adapted", **complete(adapter="/me/out/adapter"))
    steps = {"explicit_options": ["n_masks", "steps"], "decoding": {"n_masks": 1, "steps": 40}}
    write(tmp_path / "steps", **complete(pretrained="/somewhere/model", **steps))
    summary = by_model(gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS))
    assert [row["model"] for row in summary] == ["model steps=40", "some/model", "some/model+adapter"]


def test_what_gen_kwargs_set_makes_a_model_of_its_own(tmp_path: Path) -> None:
    files = complete()
    files["distracted"]["config"]["gen_kwargs"] = {"steps": 40}
    for config in files["distracted"]["configs"].values():
        config["generation_kwargs"] = {"steps": 40}
    scores = read_scores([write(tmp_path, **files)])
    assert {score.model for score in scores} == {"some/model", "some/model steps=40"}
    with pytest.raises(OptionError, match="no task has scores"):
        gains_and_losses(scores, shots=SHOTS, masks=MASKS)


def test_r_is_undefined_where_nothing_varies(tmp_path: Path) -> None:
    same = result_file(25, 200, MANY)
    rows = gains_and_losses(
        read_scores([write(tmp_path, **complete() | {"distracted": same})]), shots=SHOTS, masks=MASKS
    )
    assert by_model(rows)[0]["pearson_r"] is None
    assert by_model(rows[:2])[0]["pearson_r"] is None


def test_other_files_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    autoregressive = result_file(5, 1, FEW)
    del autoregressive["config"]["mdlm"]
    write(tmp_path, **complete(), truncated='{"results": {', of_hf=autoregressive, a_list=[1])
    assert len(gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)) == 4
    said = capsys.readouterr().err
    assert f"left out {tmp_path / 'truncated.json'}: is no whole JSON file" in said
    assert f"left out {tmp_path / 'of_hf.json'}: is no result of --model mdlm" in said
    assert f"left out {tmp_path / 'a_list.json'}" in said


def test_files_that_disagree_are_both_named(tmp_path: Path) -> None:
    write(tmp_path, **complete(), other=result_file(5, 1, (0.1, *FEW[1:])))
    with pytest.raises(OptionError, match=r"few\.json and other\.json disagree on t0 of some/model at 5 shots"):
        gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)


def of_suite(shots: int, n_masks: int, accuracies: tuple[float, ...], **changes: Any) -> dict[str, Any]:
    """A file of the suite's tasks with all examples relevant; `changes` are the suite's settings."""
    content = result_file(shots, n_masks, accuracies)
    settings = {"fewshot_relevant": shots, "fewshot_distractors": 0, "fewshot_seed": 1} | changes
    content["configs"] = {task: {"metadata": settings} for task in TASKS}
    content["config"]["mdlm"]["task_suite"] = {"sha256": "0" * 64}
    return content


def changed(content: dict[str, Any], where: str, value: Any) -> dict[str, Any]:
    """With another value at a path such as `config mdlm weights`."""
    *folders, last = where.split()
    inner = content
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return content


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (changed(of_suite(5, 1, FEW), "versions", dict.fromkeys(TASKS, "2")), "version of t0: 2 and 1"),
        (
            changed(of_suite(5, 1, FEW), "config mdlm task_suite sha256", "1" * 64),
            f"hash of the suite of t0: {'1' * 64} and {'0' * 64}",
        ),
        (of_suite(5, 1, FEW, fewshot_seed=2), "fewshot_seed of t0: 2 and 1"),
        (changed(of_suite(5, 1, FEW), "chat_template", "{{messages}}"), "chat template: True and False"),
        (changed(of_suite(5, 1, FEW), "config mdlm weights", "abc"), "weights: abc and None"),
        (changed(of_suite(5, 1, FEW), "config model_dtype", "torch.bfloat16"), "dtype: bfloat16 and "),
        (changed(of_suite(5, 1, FEW), "config model_args", {"load_in_4bit": True}), "load_in_4bit: True and None"),
        (changed(of_suite(5, 1, FEW), "config fewshot_seed", 7), "lm_eval's few-shot seed: 7 and None"),
        (changed(of_suite(5, 1, FEW), "config mdlm decoding seed", 7), "seed: 7 and None"),
        (
            of_suite(25, 1, MANY, fewshot_relevant=5, fewshot_distractors=20),
            "fewshot_relevant of t0 at 25 shots: 5 and 25",
        ),
    ],
)
def test_what_was_made_under_other_conditions_does_not_mix(other: Any, said: str, tmp_path: Path) -> None:
    files = {"few": of_suite(5, 1, FEW), "many": of_suite(25, 1, MANY), "masked": of_suite(25, 200, DISTRACTED)}
    assert len(gains_and_losses(read_scores([write(tmp_path / "a", **files)]), shots=SHOTS, masks=MASKS)) == 4
    # Even where the accuracies agree, and as what a row needs.
    name = "many" if other["n-shot"]["t0"] == 25 else "few"
    replaced = write(tmp_path / "b", **files | {name: other})
    beside = write(tmp_path / "c", **files, beside=other)
    for folder in (replaced, beside):
        with pytest.raises(OptionError) as error:
            gains_and_losses(read_scores([folder]), shots=SHOTS, masks=MASKS)
        assert f".json, both of some/model, do not compare ({said}); leave one of them out" in str(error.value)


def test_other_conditions_of_what_no_row_needs_are_no_matter(tmp_path: Path) -> None:
    files = {"few": of_suite(5, 1, FEW), "many": of_suite(25, 1, MANY), "masked": of_suite(25, 200, DISTRACTED)}
    write(tmp_path, **files, of_no_use=of_suite(50, 1, MANY, fewshot_seed=2))
    assert len(gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)) == 4


def test_different_numbers_of_questions_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path, **complete() | {"many": result_file(25, 1, MANY, questions=7)})
    with pytest.raises(OptionError, match="scored on 100, 7 and 100 questions"):
        gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)


def test_missing_settings_are_said_with_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path, few=result_file(5, 1, FEW), wide=result_file(50, 200, MANY))
    with pytest.raises(OptionError, match="found are 5 shots with 1 masks; 50 shots with 200 masks"):
        gains_and_losses(read_scores([tmp_path]), shots=SHOTS, masks=MASKS)
    with pytest.raises(OptionError, match="no such file or folder"):
        read_scores([tmp_path / "nowhere"])
