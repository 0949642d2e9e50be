"""Presets: each parses and runs, and is listed."""

import subprocess
import sys

import pytest

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import DECODING_NAMES, LIKELIHOOD_NAMES
from mdlm_lm_eval.presets import load_preset, preset_names
from mdlm_lm_eval.resolve import resolve
from tests.commands import ENVIRONMENT
from tests.conftest import choice, generation, tiny_model, tiny_tokenizer

# Families whose attention is block-causal, by the beginning of their presets' names.
BLOCK_FAMILIES = {"llada2.0": "llada2", "llada2.1": "llada21", "sdar": "sdar", "fast-dllm-v2": "fast_dllm_v2"}


@pytest.mark.parametrize("name", preset_names())
def test_the_options_of_a_preset_are_valid_and_explicit(name: str) -> None:
    preset = load_preset(name)
    settings = resolve({"preset": name})
    assert settings.explicit == preset.keys() <= DECODING_NAMES | LIKELIHOOD_NAMES
    options = vars(settings.likelihood) if "likelihood" in preset else vars(settings.decoding)
    assert preset.items() <= options.items()


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_runs(name: str) -> None:
    """Scaled down to eight masks in blocks of four; the family's own defaults count where the preset says nothing."""
    preset, model = load_preset(name), tiny_model()
    family = next((family for start, family in BLOCK_FAMILIES.items() if name.startswith(start)), None)
    scale: dict[str, object] = {"n_masks": 8} | ({"block_length": 4} if family or "block_length" in preset else {})
    if family:
        model.config.diffusion_family, model.config.block_length = family, 4
    for length in ("steps", "steps_per_block", "small_block_length"):
        scale |= {length: min(int(str(preset[length])), 8 // 2)} if length in preset else {}
    if "small_block_length" in scale:
        scale["small_block_length"] = 2
    if "likelihood" in preset:
        lm = MDLM(model, tokenizer=tiny_tokenizer(), batch_size=32, preset=name)
        [(logprob, greedy)] = lm.loglikelihood([choice("question", " yes")], disable_tqdm=True)
        assert logprob < 0.0
        # The greedy check takes as many passes as there are tokens; all presets leave it out.
        assert not greedy
        assert 0 < lm.denoiser.forward_passes <= 8
    else:
        lm = MDLM(model, tokenizer=tiny_tokenizer(), preset=name, early_exit=False, **scale)
        assert len(lm.generate_until([generation("question", until=[])], disable_tqdm=True)) == 1
        recorded = lm.get_model_info()["mdlm"]
        assert (preset | scale).items() <= recorded["decoding"].items()
        assert recorded["tasks"]["task"]["asked_masks"] == [8, 8]
    assert lm.get_model_info()["mdlm"]["preset"] == name


def test_presets_are_listed_by_the_command_that_errors_name() -> None:
    command = [sys.executable, "-m", "mdlm_lm_eval.presets"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert listed.stdout.split() == preset_names()
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert "usage: " in helped.stdout
