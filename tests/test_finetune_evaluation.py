"""The scores of an adapter's card, and what is refused before they are made."""

import sys
from pathlib import Path

import pytest

from mdlm_finetune import evaluation
from mdlm_finetune.__main__ import main
from mdlm_finetune.evaluation import evaluate, sweep_arguments
from mdlm_finetune.model_card import write_card
from mdlm_finetune.options import FinetuneOptions

RECIPE = Path(__file__).parents[1] / "finetune" / "recipes" / "built-in-ce-tv.yaml"


def test_the_sweep_is_of_the_same_model(tmp_path: Path) -> None:
    options = FinetuneOptions(output="out/a", pretrained="org/m", chat_template=True, attn_implementation="eager")
    arguments = sweep_arguments(options)
    assert "--model_args=pretrained=org/m,dtype=bfloat16,attn_implementation=eager" in arguments
    assert "--apply_chat_template" in arguments
    plain = sweep_arguments(FinetuneOptions(output="out/a"))
    assert not [argument for argument in plain if argument.startswith(("--model_args", "--apply_chat_template"))]
    write_card(tmp_path, options, [])
    assert "n_masks=200 --tasks mdlm_context --apply_chat_template\n" in (tmp_path / "README.md").read_text()


def test_another_limit_has_results_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(evaluation.subprocess, "run", lambda command, **_: ran.append(command))
    for limit in (5, 50):
        assert evaluate(FinetuneOptions(output=str(tmp_path / "a"), evaluation_limit=limit)) == []
    places = [next(word for word in command if word.startswith("--output_path=")) for command in ran]
    assert places == [f"--output_path={tmp_path}/a.evaluation/limit{limit}" for limit in (5, 50)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation_limit=1"], "holds no adapter_config.json, so there is no adapter"),
        (["evaluation_limit=0"], "evaluation_limit=0 is not allowed with --evaluate"),
        (["evaluation_limit=0", "--merge"], "holds no adapter_config.json"),
    ],
)
def test_evaluate_needs_an_adapter_and_questions(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["mdlm-finetune", "--config", str(RECIPE), "--evaluate", "--set", f"output={tmp_path}", *words]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=message):
        main()


def test_what_does_not_train_neither_resumes_nor_overwrites(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--resume", "--overwrite"):
        monkeypatch.setattr(sys, "argv", ["mdlm-finetune", "--config", str(RECIPE), "--evaluate", option])
        with pytest.raises(SystemExit):
            main()
        assert "exclude one another" in capsys.readouterr().err
