"""DiffusionGemma: transformers' own generation behind lm-eval's requests."""

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

from mdlm_lm_eval.families import family_of, load_denoiser
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DecodingOptions, OptionError
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


def test_answers_do_not_depend_on_the_batch_nor_on_other_random_numbers(lm: MDLM) -> None:
    requests = [generation(text) for text in ("a", "a longer prompt", "another")]
    together = lm.generate_until(requests, disable_tqdm=True)
    torch.manual_seed(1)
    assert together == [lm.generate_until([request], disable_tqdm=True)[0] for request in requests]
    repeated = lm.generate_until([generation("a"), generation("a")], disable_tqdm=True)
    assert repeated[0] == together[0] != repeated[1]


def test_it_is_transformers_own_generation_under_a_seed(lm: MDLM) -> None:
    generate, prompt, eos = family_of(lm.config).generate, lm.tok_encode("abc"), lm.tokenizer.eos_token_id
    assert generate is not None
    settings: dict[str, Any] = {"n_tokens": 11, "end_ids": [eos], "pad_token_id": 0, "seed": 7}
    found, passes, n_written = generate(lm.model, prompt, DecodingOptions(), **settings)
    torch.manual_seed(7)
    expected = lm.model.generate(torch.tensor([prompt]), max_new_tokens=11, eos_token_id=eos, pad_token_id=0)
    assert found == expected.sequences[0, 3:14].tolist()
    assert passes * float(expected.tokens_per_forward) == pytest.approx(n_written)
    assert n_written == int((expected.sequences[0, 3:] != 0).sum())
    bounded = DecodingOptions(steps_per_block=1, entropy_bound=0.3)
    assert generate(lm.model, prompt, bounded, **settings)[1] == 2  # one pass for each canvas of 8


@pytest.mark.parametrize("option", [{"n_masks": 16}, {"temperature": 0.5}, {"steps": 4}, {"cfg_scale": 1.0}])
def test_options_without_counterpart_are_refused(lm: MDLM, gemma: str, option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    sentence = f"{name}={value} does not work with the family diffusion_gemma.*steps_per_block and entropy_bound"
    with pytest.raises(OptionError, match=sentence):
        lm.generate_until([generation("a", **option)], disable_tqdm=True)
    with pytest.raises(OptionError, match=sentence):
        MDLM(gemma, device="cpu", **option)


def test_it_has_no_likelihood_and_no_masks(lm: MDLM, gemma: str) -> None:
    sentence = "does not work with the family diffusion_gemma"
    with pytest.raises(OptionError, match=f"likelihood=auto {sentence}"):
        lm.loglikelihood([Instance("loglikelihood", {}, ("a", "b"), 0)], disable_tqdm=True)
    with pytest.raises(OptionError, match=r"mdlm_lm_eval\.MDLM"):
        load_denoiser(gemma)
    with pytest.raises(OptionError, match=f"infill=true {sentence}"):
        lm.generate_until([generation("a <|mask|>", infill=True)], disable_tqdm=True)
