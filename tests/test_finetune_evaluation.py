"""The scores of an adapter's card, and what is refused before they are made."""

import sys
from pathlib import Path

import pytest

from mdlm_finetune import evaluation
from mdlm_finetune.__main__ import main
from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.evaluation import evaluate, sweep_arguments
from mdlm_finetune.model_card import write_card
from mdlm_finetune.objectives.mask_agnostic import MaskAgnostic


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
