"""A model whose code comes with its checkpoint, loaded with trust_remote_code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import dynamic_module_utils

from mdlm_lm_eval.families import load_denoiser
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_model

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class DoublingConfig(LlamaConfig):
    model_type = "doubling"

class Doubling(LlamaForCausalLM):
    config_class = DoublingConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 2 * output.logits
        return output
"""
SETTINGS = {"trust_remote_code": True, "mask_token_id": 2, "shift_logits": False}


@pytest.fixture
def remote(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder; the copies of its code that transformers makes stay out of the user's home."""
    modules = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(modules)
    folder = tmp_path / "doubling"
    shutil.copytree(checkpoint, folder)
    (folder / "modeling_doubling.py").write_text(CODE)
    auto_map = {"AutoConfig": "modeling_doubling.DoublingConfig", "AutoModelForCausalLM": "modeling_doubling.Doubling"}
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "doubling", "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_its_code_runs_and_answers_do_not_depend_on_the_batch(remote: Path) -> None:
    lm = MDLM(str(remote), device="cpu", batch_size=3, max_length=64, **SETTINGS)
    assert lm.get_model_info()["mdlm"]["family"] == "remote"
    canvas = torch.tensor([[5, 2, 6, 2]])
    found = lm.denoiser.logits(canvas, None, torch.tensor([1, 3]))
    torch.testing.assert_close(found, 2 * tiny_model()(canvas).logits[0, [1, 3]])
    requests = [
        Instance("generate_until", {}, (text, {"max_gen_toks": 4}), 0, metadata=("task", n, 1))
        for n, text in enumerate(("a", "a longer prompt", "the longest prompt of them"))
    ]
    together = lm.generate_until(requests, disable_tqdm=True)
    assert together == [lm.generate_until([request], disable_tqdm=True)[0] for request in requests]


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        ("trust_remote_code", "model_type='doubling' is not known.*trust_remote_code"),
        ("shift_logits", "shift_logits is not set"),
    ],
)
def test_what_must_be_said(remote: Path, left_out: str, named: str) -> None:
    settings: dict[str, Any] = {name: value for name, value in SETTINGS.items() if name != left_out}
    with pytest.raises(OptionError, match=named):
        load_denoiser(str(remote), **settings)
