"""What a run may write, continue and replace."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mdlm_finetune.arguments import FinetuneArguments
from mdlm_finetune.folders import (
    begin,
    check_folders,
    checkpoint_folder,
    evaluation_folder,
    last_checkpoint,
    merged_folder,
)
from mdlm_lm_eval.options import OptionError


@pytest.fixture
def arguments(tmp_path: Path) -> FinetuneArguments:
    return FinetuneArguments(output_dir=str(tmp_path / "adapter"), dataset_name="number_questions")


def check(arguments: FinetuneArguments, *, resume: bool = False, overwrite: bool = False, merge: bool = False) -> None:
    check_folders(arguments, arguments.changed(), resume=resume, overwrite=overwrite, merge=merge)


def adapter(arguments: FinetuneArguments) -> Path:
    folder = arguments.folder
    folder.mkdir()
    (folder / "adapter_config.json").touch()
    return folder


def checkpoint(arguments: FinetuneArguments, step: int, *, whole: bool = True) -> Path:
    folder = checkpoint_folder(arguments) / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if whole:
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return folder


def test_a_slash_at_the_end_changes_nothing(arguments: FinetuneArguments) -> None:
    assert replace(arguments, output_dir=f"{arguments.folder}/").folder == arguments.folder
    assert checkpoint_folder(arguments).parent == arguments.folder.parent
    for output in ("", " ", ".", "/", "a/.."):
        with pytest.raises(OptionError, match="output_dir must be the name of a folder"):
            FinetuneArguments(output_dir=output, dataset_name="number_questions")


def test_a_killed_run_that_overwrites_is_resumed(arguments: FinetuneArguments) -> None:
    old, old_checkpoint = adapter(arguments), checkpoint(arguments, 7)
    evaluation_folder(arguments).mkdir()
    check(arguments, overwrite=True)
    begin(arguments, arguments.changed(), overwrite=True, merge=False)
    assert not old.exists()
    assert not old_checkpoint.exists()
    assert not evaluation_folder(arguments).exists()
    newest = checkpoint(arguments, 5)
    check(arguments, resume=True)
    begin(arguments, arguments.changed(), overwrite=False, merge=False)
    assert last_checkpoint(arguments) == str(newest)


def test_a_failed_start_blocks_nothing(arguments: FinetuneArguments) -> None:
    begin(arguments, arguments.changed(), overwrite=False, merge=False)
    check(replace(arguments, seed=1))
    check(replace(arguments, seed=1), resume=True)
    assert last_checkpoint(arguments) is None


def test_a_half_saved_checkpoint_is_passed_over(arguments: FinetuneArguments) -> None:
    for step in (5, 90):
        checkpoint(arguments, step)
    checkpoint(arguments, 100, whole=False)
    (checkpoint(arguments, 95) / "trainer_state.json").write_text('{"global_st')
    newest = checkpoint_folder(arguments) / "checkpoint-90"
    assert last_checkpoint(arguments) == str(newest)
    assert last_checkpoint(replace(arguments, max_steps=90)) == str(newest)
    assert last_checkpoint(replace(arguments, max_steps=89)) == str(newest.with_name("checkpoint-5"))


def test_a_resumed_run_learns_the_same(arguments: FinetuneArguments) -> None:
    begin(arguments, arguments.changed(), overwrite=False, merge=False)
    checkpoint(arguments, 5)
    check(replace(arguments, save_steps=7, logging_steps=1, report_to="tensorboard"), resume=True)
    with pytest.raises(OptionError, match=r"optim=sgd is not allowed with --resume.* optim=its default"):
        check(replace(arguments, optim="sgd"), resume=True)
    with pytest.raises(OptionError, match=r"lora_r=8 is not allowed with --resume.* lora_r=its default"):
        check(replace(arguments, lora_r=8), resume=True)
    with pytest.raises(OptionError, match="holds another run; continue it with --resume"):
        check(arguments)
    (checkpoint_folder(arguments) / "recipe.yaml").unlink()
    with pytest.raises(OptionError, match=r"recipe\.yaml cannot be read"):
        check(arguments, resume=True)


def test_a_resumed_run_has_as_many_processes_and_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("{}")
    arguments = FinetuneArguments(output_dir=str(tmp_path / "adapter"), train_file=str(data))
    begin(arguments, arguments.changed() | arguments.circumstances(), overwrite=False, merge=False)
    checkpoint(arguments, 5)

    def resume() -> None:
        recipe = arguments.changed() | arguments.circumstances()
        check_folders(arguments, recipe, resume=True, overwrite=False, merge=False)

    resume()
    data.write_text("{ }")
    with pytest.raises(OptionError, match=r"train_file_sha256=\w{64} is not allowed with --resume"):
        resume()
    data.write_text("{}")
    monkeypatch.setattr(FinetuneArguments, "world_size", 2)
    with pytest.raises(OptionError, match=r"processes=2 is not allowed with --resume: .* holds a run with processes=1"):
        resume()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_only_adapters_and_models_are_replaced(arguments: FinetuneArguments, make: Callable[[Path], None]) -> None:
    merged = merged_folder(arguments)
    make(merged)
    check(arguments)
    with pytest.raises(OptionError, match=r"adapter\.merged exists already"):
        check(arguments, merge=True)
    with pytest.raises(OptionError, match=r"adapter\.merged cannot be replaced: it holds no config\.json"):
        check(arguments, merge=True, overwrite=True)
    make(arguments.folder)
    with pytest.raises(OptionError, match="exists already"):
        check(arguments)
    with pytest.raises(OptionError, match=r"cannot be replaced: it holds no adapter_config\.json"):
        check(arguments, overwrite=True)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"output_dir \S+file cannot be written"):
        check(FinetuneArguments(output_dir=str(tmp_path / "file" / "adapter"), dataset_name="number_questions"))
