"""Models that come with the package, by name."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from mdlm_lm_eval import load_denoiser, load_tokenizer
from mdlm_lm_eval.checkpoints import files_digest
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.models import model_path


def test_the_built_in_model_has_a_name_and_needs_none() -> None:
    by_folder = load_denoiser(model_path("built-in"))
    ids = torch.tensor([[5, by_folder.mask_token_id]])
    for denoiser in (load_denoiser(), load_denoiser("built-in")):
        torch.testing.assert_close(denoiser.model(ids).logits, by_folder.model(ids).logits, atol=0, rtol=0)
    assert load_tokenizer().get_vocab() == load_tokenizer("built-in").get_vocab()
    assert files_digest("built-in") == files_digest(model_path("built-in")) is not None
    assert files_digest("some/hub-id") is None


def test_it_is_the_same_model_to_lm_eval() -> None:
    facts = [MDLM(**arguments).get_model_info()["mdlm"] for arguments in ({}, {"pretrained": "built-in"})]
    assert facts[0] == facts[1]
    assert facts[0]["pretrained"] == "built-in"
    assert MDLM(tokenizer="built-in").tokenizer.get_vocab() == load_tokenizer().get_vocab()


def test_the_weights_of_a_result_are_those_of_its_subfolder(tmp_path: Path) -> None:
    shutil.copytree(model_path("built-in"), tmp_path / "checkpoint-500")
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    whole = files_digest(str(tmp_path / "checkpoint-500"))
    assert whole == files_digest("built-in")
    lm = MDLM(str(tmp_path), subfolder="checkpoint-500", device="cpu")
    assert lm.get_model_info()["mdlm"]["weights"] == whole


def test_their_batch_size_is_auto_unless_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch_size(given: int | str | None, **arguments: str) -> int | str:
        size: int | str = MDLM.create_from_arg_obj(dict(arguments), {"batch_size": given, "device": "cpu"}).batch_size
        return size

    assert MDLM().batch_size == batch_size(None) == batch_size(None, pretrained="built-in-lists") == "auto"
    assert MDLM(batch_size=1).batch_size == batch_size(1) == 1
    assert int(batch_size(4)) == int(batch_size(2, batch_size="4")) == 4
    # The command hands over the number 1 where nothing is typed, and text where something is.
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", sys)
    assert batch_size(1) == "auto"
    assert int(batch_size("1")) == int(batch_size(1, batch_size="1")) == 1
    shutil.copytree(model_path("built-in-block"), tmp_path, dirs_exist_ok=True)
    assert int(batch_size(1, pretrained=str(tmp_path))) == 1
