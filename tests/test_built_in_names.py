"""Models that come with the package, by name."""

import shutil
from pathlib import Path

import torch

from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.families import files_digest, load_tokenizer
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.sweep.plan import plan
from mdlm_lm_eval.sweep.results import cell_settings
from mdlm_lm_eval.sweep.tasks import Tasks


def test_the_built_in_model_has_a_name_and_needs_none() -> None:
    by_folder = load_denoiser(str(default_model_path()))
    ids = torch.tensor([[5, by_folder.mask_token_id]])
    for denoiser in (load_denoiser(), load_denoiser("built-in")):
        torch.testing.assert_close(denoiser.model(ids).logits, by_folder.model(ids).logits, atol=0, rtol=0)
    assert load_tokenizer().get_vocab() == load_tokenizer("built-in").get_vocab()
    assert files_digest("built-in") == files_digest(str(default_model_path())) is not None


def test_it_is_the_same_model_to_lm_eval() -> None:
    facts = [MDLM(**arguments).get_model_info()["mdlm"] for arguments in ({}, {"pretrained": "built-in"})]
    assert facts[0] == facts[1]
    assert facts[0]["pretrained"] == "built-in"
    assert MDLM(tokenizer="built-in").tokenizer.get_vocab() == load_tokenizer().get_vocab()


def test_the_weights_of_a_result_are_those_of_its_subfolder(tmp_path: Path) -> None:
    shutil.copytree(default_model_path(), tmp_path / "checkpoint-500")
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    whole = files_digest(str(tmp_path / "checkpoint-500"))
    assert whole == files_digest("built-in")
    lm = MDLM(str(tmp_path), subfolder="checkpoint-500", device="cpu")
    assert lm.get_model_info()["mdlm"]["weights"] == whole
    sweep = plan({"tasks": "mdlm_slot", "model_args": {"pretrained": str(tmp_path), "subfolder": "checkpoint-500"}})
    assert cell_settings(sweep, sweep.cells[0], Tasks(sweep), files_digest)["weights"] == whole
