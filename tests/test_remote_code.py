"""A model whose code comes with its checkpoint, loaded with trust_remote_code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from safetensors.torch import save_file
from transformers import dynamic_module_utils

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

CODE = '''
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput


class SummingConfig(PretrainedConfig):
    model_type = "summing"

    def __init__(self, vocab_size=259, hidden_size=8, **settings):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**settings)


class Summing(PreTrainedModel):
    """Every token's embedding plus the sum over its row."""

    config_class = SummingConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, attention_mask=None):
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embed(input_ids) * seen[..., None]
        return MaskedLMOutput(logits=self.head(x + x.sum(1, keepdim=True)))
'''
SETTINGS = {"trust_remote_code": True, "mask_token_id": 2, "shift_logits": False}


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder; the copies of its code that transformers makes stay out of the user's home."""
    modules = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(modules)
    folder = tmp_path / "summing"
    folder.mkdir()
    (folder / "modeling_summing.py").write_text(CODE)
    auto_map = {"AutoConfig": "modeling_summing.SummingConfig", "AutoModel": "modeling_summing.Summing"}
    config = {"model_type": "summing", "vocab_size": 259, "hidden_size": 8, "eos_token_id": 1, "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    weights = {"embed.weight": torch.randn(259, 8), "head.weight": torch.randn(259, 8)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("broken", ["config", "model"])
def test_code_that_fails_ends_in_one_sentence(remote: Path, broken: str) -> None:
    code = {"config": "import no_such_package\n" + CODE, "model": CODE.replace("self.post_init()", "self.nothing()")}
    (remote / "modeling_summing.py").write_text(code[broken])
    with pytest.raises(OptionError, match=r"its own code does not run with the installed packages: [A-Z]") as error:
        MDLM(str(remote), device="cpu", **SETTINGS)
    assert "\n" not in str(error.value)


def test_answers_do_not_depend_on_the_batch(remote: Path) -> None:
    lm = MDLM(str(remote), device="cpu", batch_size=3, max_length=64, **SETTINGS)
    assert lm.get_model_info()["mdlm"]["family"] == "remote"
    requests = [
        Instance("generate_until", {}, (text, {"max_gen_toks": 4}), 0, metadata=("task", n, 1))
        for n, text in enumerate(("a", "a longer prompt", "the longest prompt of them"))
    ]
    together = lm.generate_until(requests, disable_tqdm=True)
    assert together == [lm.generate_until([request], disable_tqdm=True)[0] for request in requests]
    assert len(set(together)) > 1


def test_only_the_chosen_positions_are_projected(remote: Path) -> None:
    denoiser = load_denoiser(str(remote), **SETTINGS)
    canvas = torch.tensor([[5, 2, 6, 2]])
    logits = denoiser.logits(canvas, None, torch.tensor([1, 3]))
    torch.testing.assert_close(logits, denoiser.model(canvas).logits[0, [1, 3]])


@pytest.mark.parametrize(
    ("left_out", "named"),
    [("trust_remote_code", "model_type='summing' is not known.*trust_remote_code"), ("shift_logits", "shift_logits")],
)
def test_what_must_be_said(remote: Path, left_out: str, named: str) -> None:
    settings: dict[str, Any] = {name: value for name, value in SETTINGS.items() if name != left_out}
    with pytest.raises(OptionError, match=named):
        MDLM(str(remote), device="cpu", max_length=64, **settings)


def test_a_missing_weight_is_named(remote: Path) -> None:
    save_file({"embed.weight": torch.randn(259, 8)}, remote / "model.safetensors", {"format": "pt"})
    with pytest.raises(OptionError, match=r"missing: head\.weight"):
        load_denoiser(str(remote), **SETTINGS)
