"""Models that come with the package, by name."""

import torch

from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.families import files_digest, load_tokenizer
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loading import load_denoiser


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
