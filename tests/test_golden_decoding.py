"""Token-for-token agreement with the families' reference samplers (float32, temperature 0)."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.families import family_of, load_config, load_model
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ("llada", "dream", "llada_moe")
DREAM_ORDERS = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}


def reference(family: str) -> dict:
    return json.loads((GOLDEN / family / "golden.json").read_text())


def options_of(setting: dict) -> DecodingOptions:
    """Our options for a reference sampler's arguments."""
    if "alg" in setting:
        unmasking = DREAM_ORDERS[setting["alg"]]
        n_masks = setting["max_new_tokens"]
        return DecodingOptions(n_masks=n_masks, steps=setting["steps"], unmasking=unmasking, schedule="dream")
    return DecodingOptions(
        n_masks=setting["gen_length"],
        steps=setting["steps"],
        block_length=setting["block_length"],
        cfg_scale=setting.get("cfg_scale", 0.0),
    )


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Denoiser]:
    folder = str(GOLDEN / request.param)
    config = load_config(folder)
    model = load_model(folder, config).eval()
    facts = reference(request.param)
    return request.param, Denoiser(
        model,
        mask_token_id=facts["mask_token_id"],
        pad_token_id=facts["eos_token_id"],
        shift=family_of(config).shift(config),
    )


@pytest.mark.parametrize("early_exit", [True, False])
def test_every_generation_setting_matches_token_for_token(family: tuple[str, Denoiser], early_exit: bool) -> None:
    name, denoiser = family
    tensors = load_file(GOLDEN / name / "golden.safetensors")
    prompts = tensors["generate.prompt_ids"].tolist()
    settings = reference(name)["generate"]
    assert len(settings) == {"llada": 6, "dream": 5, "llada_moe": 6}[name]
    for number, setting in enumerate(settings):
        options = options_of(setting).override({"early_exit": early_exit})
        expected = tensors[f"generate.{number}.sequences"][:, 12:].tolist()
        assert decode(denoiser, prompts, options) == expected, setting
        assert [decode(denoiser, [prompt], options)[0] for prompt in prompts] == expected, setting
