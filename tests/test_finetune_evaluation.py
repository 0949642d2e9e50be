"""The scores of an adapter's card, and what is refused before they are made."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mdlm_finetune import evaluation
from mdlm_finetune.__main__ import main
from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.evaluation import evaluate, sweep_arguments
from mdlm_finetune.model_card import write_card
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic
from tests.leaderboard_files import suite_file


def test_the_sweep_is_of_the_same_model(tmp_path: Path) -> None:
    given = FinetuneArguments(
        output_dir="out/a",
        model_name_or_path="org/m",
        dataset_name="org/d",
        apply_chat_template=True,
        attn_implementation="eager",
    )
    arguments = sweep_arguments(given)
    assert "--model_args=pretrained=org/m,dtype=bfloat16,attn_implementation=eager" in arguments
    assert "--apply_chat_template" in arguments
    plain = sweep_arguments(FinetuneArguments(output_dir="out/a", dataset_name="number_questions"))
    assert not [argument for argument in plain if argument.startswith(("--model_args", "--apply_chat_template"))]
    write_card(tmp_path, given, MaskAgnostic(), [])
    assert "n_masks=200 --tasks mdlm_context --apply_chat_template\n" in (tmp_path / "README.md").read_text()


def test_another_limit_has_results_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(evaluation.subprocess, "run", lambda command, **_: ran.append(command))
    for limit in (5, 50):
        arguments = FinetuneArguments(
            output_dir=str(tmp_path / "a"), dataset_name="number_questions", evaluation_limit=limit
        )
        assert evaluate(arguments) == []
    places = [next(word for word in command if word.startswith("--output_path=")) for command in ran]
    assert places == [f"--output_path={tmp_path}/a.evaluation/limit{limit}" for limit in (5, 50)]


def test_scores_are_kept_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = FinetuneArguments(output_dir=str(tmp_path / "a"), dataset_name="number_questions", evaluation_limit=50)
    folder = tmp_path / "a.evaluation" / "limit50"

    def sweep(command: list[str], **_: Any) -> None:
        folder.mkdir(parents=True)
        for n, adapter in ((50, None), (200, "/home/someone/a")):
            content = suite_file(n_masks=n, accuracy=0.6, adapter=adapter, limit=50)
            (folder / f"results_{n}.json").write_text(json.dumps(content))

    monkeypatch.setattr(evaluation.subprocess, "run", sweep)
    after, before = sorted(evaluate(arguments), key=lambda score: -score.n_masks)
    assert (before.adapted, before.n_masks, after.adapted, after.n_masks) == (False, 50, True, 200)
    assert sorted(before.by_task.values()) == pytest.approx([0.5, *[0.6] * 14, 0.7])
    assert (before.accuracy, before.n_questions) == (pytest.approx(0.6), 800)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--evaluation_limit=1"], "holds no adapter_config.json, so there is no adapter"),
        (["--evaluation_limit=0"], "evaluation_limit=0 is not allowed with --evaluate"),
        (["--evaluation_limit=0", "--merge"], "holds no adapter_config.json"),
    ],
)
def test_evaluate_needs_an_adapter_and_questions(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["mdlm-finetune", "--config=built-in-ce-tv", "--evaluate", f"--output_dir={tmp_path}", *words]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=message):
        main()


def test_what_does_not_train_neither_resumes_nor_overwrites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for option in ("--resume", "--overwrite"):
        monkeypatch.setattr(sys, "argv", ["mdlm-finetune", "--config=built-in-ce-tv", "--evaluate", option])
        with pytest.raises(SystemExit, match="exclude one another"):
            main()
