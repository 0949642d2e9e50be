"""Masked LMs of transformers with [CLS] and [SEP], no BOS or EOS; and models whose code comes with their checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    dynamic_module_utils,
)

from mdlm_lm_eval import DecodingOptions, decode
from mdlm_lm_eval.checkpoints import load_denoiser
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError
from tests.conftest import choice, generation, rolling, tiny_model

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(40)))
SHAPE = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LONG = " ".join(f"w{n % 40}" for n in range(100))


def word_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def test_bert_answers_every_kind_of_request(tmp_path: Path) -> None:
    config = BertConfig(**SHAPE, intermediate_size=32, max_position_embeddings=32, pad_token_id=0)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    bert = MDLM(str(tmp_path), batch_size=2, mc_num=8)
    prompts = [generation(text, max_gen_toks=3) for text in ("w1", "w2 w3 w4")]
    together = bert.generate_until(prompts, disable_tqdm=True)
    assert together == [bert.generate_until([prompt], disable_tqdm=True)[0] for prompt in prompts]
    assert bert.prefix_token_id == WORDS.index("[CLS]")
    (without_context,) = bert.loglikelihood([choice("", "w1 w2")], disable_tqdm=True)
    assert without_context[0] < 0
    assert bert.loglikelihood_rolling([rolling(LONG)], disable_tqdm=True)[0] < 0


def test_albert_has_a_head_that_nothing_here_uses(tmp_path: Path) -> None:
    config = AlbertConfig(**SHAPE, embedding_size=16, intermediate_size=32, max_position_embeddings=32, pad_token_id=0)
    AlbertForPreTraining(config).save_pretrained(tmp_path)
    assert "sop_classifier.classifier.weight" in load_file(tmp_path / "model.safetensors")
    word_tokenizer().save_pretrained(tmp_path)
    albert = MDLM(str(tmp_path), device="cpu", mc_num=8)
    assert albert.loglikelihood([choice("w1", " w2")], disable_tqdm=True)[0][0] < 0


def test_robertas_positions_begin_behind_its_padding(tmp_path: Path) -> None:
    config = RobertaConfig(**SHAPE, intermediate_size=32, max_position_embeddings=34, pad_token_id=1)
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    lm = MDLM(str(tmp_path), mc_num=8)
    assert lm.max_length == 32
    lm.generate_until([generation(LONG, max_gen_toks=3)], disable_tqdm=True)
    with pytest.raises(OptionError, match="32"):
        MDLM(str(tmp_path), n_masks=32).generate_until([generation(LONG)], disable_tqdm=True)
    (answer,) = decode(lm.denoiser, [[5] * 40], DecodingOptions(n_masks=2))
    assert len(answer) == 2


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
    texts = ("a", "a longer prompt", "the longest prompt of them")
    requests = [generation(text, doc=n, max_gen_toks=4) for n, text in enumerate(texts)]
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
