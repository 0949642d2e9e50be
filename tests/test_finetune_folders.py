"""What a run may write, continue and replace."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mdlm_finetune.folders import check_folders, checkpoint_folder, claim, last_checkpoint, merged_folder
from mdlm_finetune.options import FinetuneOptions
from mdlm_lm_eval.options import OptionError


@pytest.fixture
def options(tmp_path: Path) -> FinetuneOptions:
    return FinetuneOptions(output=str(tmp_path / "adapter"))


def check(options: FinetuneOptions, *, resume: bool = False, overwrite: bool = False, merge: bool = False) -> None:
    check_folders(options, resume=resume, overwrite=overwrite, merge=merge)


def adapter(options: FinetuneOptions) -> Path:
    folder = Path(options.output)
    folder.mkdir()
    (folder / "adapter_config.json").touch()
    return folder


def checkpoint(options: FinetuneOptions, step: int, *, whole: bool = True) -> Path:
    folder = checkpoint_folder(options) / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if whole:
        (folder / "trainer_state.json").touch()
    return folder


def test_a_slash_at_the_end_changes_nothing(options: FinetuneOptions) -> None:
    assert replace(options, output=f"{options.output}/") == options
    assert checkpoint_folder(options).parent == Path(options.output).parent
    for output in ("", " ", ".", "/", "a/.."):
        with pytest.raises(OptionError, match="is not allowed; allowed is the name of a folder"):
            FinetuneOptions(output=output)


def test_a_killed_run_that_overwrites_is_resumed(options: FinetuneOptions) -> None:
    old, old_checkpoint = adapter(options), checkpoint(options, 7)
    check(options, overwrite=True)
    claim(options, overwrite=True, merge=False)
    assert not old.exists()
    assert not old_checkpoint.exists()
    newest = checkpoint(options, 5)
    check(options, resume=True)
    claim(options, overwrite=False, merge=False)
    assert last_checkpoint(options) == str(newest)


def test_a_failed_start_blocks_nothing(options: FinetuneOptions) -> None:
    claim(options, overwrite=False, merge=False)
    check(replace(options, seed=1))
    check(replace(options, seed=1), resume=True)
    assert last_checkpoint(options) is None


def test_a_half_saved_checkpoint_is_passed_over(options: FinetuneOptions) -> None:
    for step in (5, 90):
        checkpoint(options, step)
    checkpoint(options, 100, whole=False)
    newest = checkpoint_folder(options) / "checkpoint-90"
    assert last_checkpoint(options) == str(newest)


def test_a_resumed_run_learns_the_same(options: FinetuneOptions) -> None:
    claim(options, overwrite=False, merge=False)
    checkpoint(options, 5)
    check(replace(options, save_steps=7, trainer={"logging_steps": 1, "report_to": ["tensorboard"]}), resume=True)
    with pytest.raises(OptionError, match=r"trainer=\{'optim': 'sgd'\} is not allowed with --resume"):
        check(replace(options, trainer={"optim": "sgd"}), resume=True)
    with pytest.raises(OptionError, match="holds another run; continue it with --resume"):
        check(options)
    recipe = checkpoint_folder(options) / "recipe.yaml"
    settings = yaml.safe_load(recipe.read_text())
    del settings["data_config"]  # a key that came later
    recipe.write_text(yaml.safe_dump(settings))
    check(options, resume=True)
    recipe.unlink()
    with pytest.raises(OptionError, match=r"recipe\.yaml cannot be read"):
        check(options, resume=True)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_only_adapters_and_models_are_replaced(options: FinetuneOptions, make: Callable[[Path], None]) -> None:
    merged = merged_folder(options)
    make(merged)
    check(options)
    with pytest.raises(OptionError, match=r"adapter\.merged exists already"):
        check(options, merge=True)
    with pytest.raises(OptionError, match=r"adapter\.merged cannot be replaced: it holds no config\.json"):
        check(options, merge=True, overwrite=True)
    make(Path(options.output))
    with pytest.raises(OptionError, match="exists already"):
        check(options)
    with pytest.raises(OptionError, match=r"cannot be replaced: it holds no adapter_config\.json"):
        check(options, overwrite=True)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="adapter: cannot be written"):
        check(FinetuneOptions(output=str(tmp_path / "file" / "adapter")))
