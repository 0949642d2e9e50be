"""What `mdlm-leaderboard validate` finds in a submission."""

from pathlib import Path
from typing import Any

import pytest

from mdlm_leaderboard.validate import problems_of
from tests.leaderboard_files import gsm8k_file, suite_file, write


def problems(folder: Path, content: Any) -> list[str]:
    return problems_of(write(folder, file=content) / "file.json")


@pytest.mark.parametrize(
    "content",
    [
        suite_file(),
        suite_file(variant="_slot", group="mdlm_slot", n_masks=None),
        suite_file(model="hf", model_args={"pretrained": "gpt2"}),
        gsm8k_file(),
        gsm8k_file(model="mdlm"),
    ],
)
def test_a_whole_file_has_no_problem(tmp_path: Path, content: Any) -> None:
    assert problems(tmp_path, content) == []


def lacking(content: dict[str, Any], *keys: str) -> dict[str, Any]:
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return content


def with_questions(content: dict[str, Any], task: str, n: int) -> dict[str, Any]:
    content["n-samples"][task] = {"original": n, "effective": n}
    return content


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            suite_file(model_args={"pretrained": "org/model", "token": "hf_x"}),
            "holds a secret or a folder of your machine in 'model_args'",
        ),
        ('{"results"', "is no whole JSON file (Expecting ':' delimiter: line 1 column 11 (char 10))"),
        (suite_file(limit=50), "--limit 50 leaves out questions; a submission answers all"),
        (suite_file(version="0.9"), "mdlm_country_smallest is of suite version '0.9'; it must be 2.0"),
        (lacking(suite_file(), "date"), "names no date"),
        (lacking(suite_file(), "transformers_version"), "names no version of transformers"),
        (lacking(suite_file(), "config", "mdlm", "likelihood"), "does not record 'likelihood' of --model mdlm"),
        (
            lacking(suite_file(), "config", "mdlm", "tasks", "mdlm_verb_largest", "masks"),
            "states no mask count for 'mdlm_verb_largest'",
        ),
        (
            lacking(suite_file(), "config", "mdlm", "task_suite", "sha256"),
            "does not record the suite's sha256 of --model mdlm",
        ),
        (
            with_questions(suite_file(), "mdlm_verb_largest", 500),
            "mdlm_verb_largest has 500 questions; it must have 1000",
        ),
        (suite_file(model="hf"), "names no model; run it with --model_args pretrained=..."),
        (
            gsm8k_file(asked=10, limit=10),
            "--limit 10 leaves out questions; a submission answers all",
        ),
        (
            gsm8k_file(asked=10),
            "answers 10 of 1319 questions of 'gsm8k' without a --limit",
        ),
    ],
)
def test_each_problem_is_a_sentence(tmp_path: Path, content: Any, problem: str) -> None:
    assert problem in problems(tmp_path, content)


def test_all_16_tasks_must_be_there(tmp_path: Path) -> None:
    content = suite_file()
    for name in ("mdlm_verb_smallest", "mdlm_emotion_largest"):
        del content["configs"][name]
    content["groups"], content["group_subtasks"] = {}, {}
    assert problems(tmp_path, content) == ["mdlm_context lacks 2 of its 16 tasks: emotion_largest, verb_smallest"]


def test_implausible_numbers_are_named(tmp_path: Path) -> None:
    content = suite_file()
    content["results"]["mdlm_verb_smallest"]["exact_match,none"] = 0.80055
    content["groups"]["mdlm_context"]["exact_match,none"] = 0.95
    mean = (0.9 + 0.7 + 13 * 0.8 + 0.80055) / 16
    found = problems(tmp_path, content)
    assert found[0] == (
        "mdlm_verb_smallest has exact_match=0.80055, which is no whole number of right answers to 1000 questions"
    )
    assert found[1].startswith(f"mdlm_context reports 0.95, its tasks' mean is {mean:.6f}")
    assert len(found) == 2


def test_a_tasks_metadata_is_looked_at_too(tmp_path: Path) -> None:
    content = suite_file()
    content["configs"]["mdlm_verb_smallest"]["metadata"]["token"] = "hf_x"
    content["configs"]["mdlm_emotion_largest"]["metadata"]["config_source"] = "/usr/lib/lm_eval/tasks/a.yaml"
    assert problems(tmp_path, content) == [
        "holds a secret or a folder of your machine in the metadata of 'mdlm_verb_smallest'"
    ]


def test_a_limit_that_leaves_out_nothing_is_none(tmp_path: Path) -> None:
    assert problems(tmp_path, suite_file(limit=1000)) == []


def test_an_option_has_one_value(tmp_path: Path) -> None:
    content = suite_file()
    content["config"]["mdlm"]["likelihood"]["mc_num"] = [128]
    assert problems(tmp_path, content) == ["records likelihood options that cannot be: mc_num=[128]"]
