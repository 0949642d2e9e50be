"""DiffusionGemma: transformers' own generation behind lm-eval's requests."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
)

from mdlm_lm_eval.families import load_config
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
STEPS = 4


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gemma")
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, "global_head_dim": 16}
    text = DiffusionGemmaTextConfig(
        **SHAPE,
        **experts,
        vocab_size=len(tiny_tokenizer()),
        intermediate_size=32,
        max_position_embeddings=96,
        layer_types=["full_attention"],
    )
    vision = Gemma4VisionConfig(**SHAPE, intermediate_size=16)
    torch.manual_seed(0)
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=8)
    model = DiffusionGemmaForBlockDiffusion(config)
    model.generation_config.max_denoising_steps = STEPS
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def lm(gemma: str) -> MDLM:
    return MDLM(gemma, device="cpu", batch_size=2)


def generation(text: str, document: int = 0, **gen_kwargs: object) -> Instance:
    return Instance("generate_until", {}, (text, {"max_gen_toks": 11} | gen_kwargs), 0, metadata=("task", document, 1))


def test_it_is_transformers_own_generation_under_a_seed(lm: MDLM) -> None:
    (prepared,) = lm._prepare([generation("abc")])
    passes = lm.denoiser.forward_passes
    (completion,), _ = lm._decode_measured([prepared])
    torch.manual_seed(prepared.canvas.seed)
    expected = lm.model.generate(
        torch.tensor([lm.tok_encode("abc")]),
        max_new_tokens=11,
        eos_token_id=lm.tokenizer.eos_token_id,
        pad_token_id=lm.tokenizer.pad_token_id,
    )
    assert completion.token_ids == expected.sequences[0, 3:14].tolist()
    n_tokens = int((expected.sequences[0, 3:] != lm.tokenizer.pad_token_id).sum())
    assert (lm.denoiser.forward_passes - passes) * float(expected.tokens_per_forward) == pytest.approx(n_tokens)
    assert completion.n_written == n_tokens


def test_answers_do_not_depend_on_the_batch_nor_on_other_random_numbers(lm: MDLM) -> None:
    requests = [generation(text) for text in ("a", "a longer prompt", "another")]
    together = lm.generate_until(requests, disable_tqdm=True)
    torch.manual_seed(1)
    assert together == [lm.generate_until([request], disable_tqdm=True)[0] for request in requests]
    repeated = lm.generate_until([generation("a"), generation("a")], disable_tqdm=True)
    assert repeated[0] == together[0] != repeated[1]


def test_steps_and_entropy_bound(lm: MDLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(type(lm.model), "generate", lambda *_, **settings: asked.update(settings))
    with pytest.raises(AttributeError):  # nothing was generated
        lm.generate_until([generation("a", steps_per_block=2, entropy_bound=0.3)], disable_tqdm=True)
    assert (asked["max_denoising_steps"], asked["sampler_config"].entropy_bound) == (2, 0.3)


def test_results_say_what_answered(lm: MDLM) -> None:
    facts = lm.get_model_info()["mdlm"]
    assert (facts["family"], lm.max_length) == ("diffusion_gemma", 96)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"n_masks": 16}, "n_masks=16 does not work with the family diffusion_gemma"),
        ({"temperature": 0.5}, "temperature=0.5 does not work.*entropy_bound"),
        ({"steps": 4}, "steps=4 does not work.*steps_per_block"),
        ({"cfg_scale": 1.0}, "cfg_scale=1.0 does not work"),
    ],
)
def test_options_without_counterpart_are_refused(lm: MDLM, gemma: str, option: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        lm.generate_until([generation("a", **option)], disable_tqdm=True)
    with pytest.raises(OptionError, match=sentence):
        MDLM(gemma, device="cpu", **option)


def test_it_has_no_likelihood_and_no_masks(lm: MDLM, gemma: str) -> None:
    sentence = "does not work with the family diffusion_gemma.*use generation tasks"
    with pytest.raises(OptionError, match=f"likelihood=auto {sentence}"):
        lm.loglikelihood([Instance("loglikelihood", {}, ("a", "b"), 0)], disable_tqdm=True)
    with pytest.raises(OptionError, match=f"likelihood=auto {sentence}"):
        lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("ab",), 0)], disable_tqdm=True)
    with pytest.raises(OptionError, match=r"use mdlm_lm_eval\.MDLM"):
        load_denoiser(gemma)
    with pytest.raises(OptionError, match="infill=true does not work"):
        lm.generate_until([generation("a <|mask|>", infill=True)], disable_tqdm=True)


def test_a_transformers_that_does_not_know_it(gemma: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdlm_lm_eval.families.loading.config.CONFIG_MAPPING", {})
    with pytest.raises(OptionError, match="the family diffusion_gemma needs a newer transformers than"):
        load_config(gemma)
    assert Path(gemma, "config.json").exists()
