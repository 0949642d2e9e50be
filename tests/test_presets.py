"""Presets: each parses, runs and stands in docs/benchmarks.md with its command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from lm_eval.api.instance import Instance

from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model_arguments import DECODING_NAMES, LIKELIHOOD_NAMES, split_model_arguments
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.presets import load_preset, preset_names
from mdlm_lm_eval.requests import parse_gen_kwargs
from tests.conftest import tiny_model, tiny_tokenizer

DOC = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOC.splitlines() if re.match(r"(HF_ALLOW_CODE_EVAL=1 )?lm_eval ", line)]
MODELS = {
    "llada-8b-base": "GSAI-ML/LLaDA-8B-Base",
    "llada-8b-instruct": "GSAI-ML/LLaDA-8B-Instruct",
    "llada-1.5": "GSAI-ML/LLaDA-1.5",
    "dream-7b-base": "Dream-org/Dream-v0-Base-7B",
    "dream-7b-instruct": "Dream-org/Dream-v0-Instruct-7B",
    "llada2.0-mini": "inclusionAI/LLaDA2.0-mini",
    "llada2.0-flash": "inclusionAI/LLaDA2.0-flash",
    "llada2.1-mini": "inclusionAI/LLaDA2.1-mini",
    "llada2.1-flash": "inclusionAI/LLaDA2.1-flash",
    "sdar-1.7b-chat": "JetLM/SDAR-1.7B-Chat",
    "sdar-8b-chat": "JetLM/SDAR-8B-Chat",
    "fast-dllm-v2-7b": "Efficient-Large-Model/Fast_dLLM_v2_7B",
    "fast-dllm-v2-1.5b": "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
}
# Families whose attention is block-causal, by the beginning of their presets' names.
BLOCK_FAMILIES = {"llada2.0": "llada2", "llada2.1": "llada21", "sdar": "sdar", "fast-dllm-v2": "fast_dllm_v2"}


@pytest.fixture(scope="module")
def settings() -> dict[str, dict[str, str]]:
    """Preset name -> settings, as the tables of the documentation have them."""
    rows = re.findall(r"^\| `([^`]+)` \|[^|]+\|[^|]+\| `([^`]+)` \|", DOC, re.MULTILINE)
    assert len(rows) == len({name for name, _ in rows})
    return {name: dict(pair.split("=") for pair in pairs.split()) for name, pairs in rows}


@pytest.mark.parametrize("name", preset_names())
def test_the_options_of_a_preset_are_valid_and_explicit(name: str) -> None:
    preset = load_preset(name)
    arguments = split_model_arguments({"preset": name}, default_seed=0)
    assert arguments.explicit == preset.keys() <= DECODING_NAMES | LIKELIHOOD_NAMES
    assert arguments.preset == name
    assert "preset" not in arguments.loading
    options = vars(arguments.likelihood) if "likelihood" in preset else vars(arguments.decoding)
    assert preset.items() <= options.items()


def block_family(preset: str) -> str | None:
    return next((family for start, family in BLOCK_FAMILIES.items() if preset.startswith(start)), None)


@pytest.mark.parametrize("name", [name for name in preset_names() if block_family(name)])
def test_a_preset_of_a_block_diffusion_model_runs(name: str) -> None:
    """Scaled down to eight masks in blocks of four; the family's own defaults stand where the preset says nothing."""
    preset = load_preset(name)
    model = tiny_model()
    model.config.diffusion_family, model.config.block_length = block_family(name), 4
    scale = {"n_masks": 8, "block_length": 4}
    scale |= {"steps_per_block": 4} if "steps_per_block" in preset else {}
    scale |= {"small_block_length": 2} if "small_block_length" in preset else {}
    lm = MDLM(model, tokenizer=tiny_tokenizer(), preset=name, early_exit=False, **scale)
    request = Instance("generate_until", {}, ("question", {"until": []}), 0, metadata=("write", 0, 1))
    assert len(lm.generate_until([request], disable_tqdm=True)) == 1
    recorded = lm.get_model_info()["mdlm"]
    assert recorded["preset"] == name
    assert (preset | scale).items() <= recorded["decoding"].items()


@pytest.mark.parametrize("name", [name for name in preset_names() if not block_family(name)])
def test_a_preset_runs(name: str) -> None:
    """Scaled down to eight masks: the settings stand in the way of none of the model's methods."""
    preset = load_preset(name)
    scale = {"n_masks": 8, "steps": 8} | ({"block_length": 4} if "block_length" in preset else {})
    if "likelihood" in preset:
        lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), batch_size=32, preset=name)
        request = Instance("loglikelihood", {}, ("question", " yes"), 0, metadata=("choice", 0, 1))
        [(logprob, greedy)] = lm.loglikelihood([request], disable_tqdm=True)
        assert logprob < 0.0
        assert not greedy
        # The greedy check takes as many passes as there are tokens; all presets leave it out.
        assert 0 < lm.denoiser.forward_passes <= 8
    else:
        lm = MDLM(tiny_model(), tokenizer=tiny_tokenizer(), preset=name, early_exit=False, **scale)
        request = Instance("generate_until", {}, ("question", {"until": []}), 0, metadata=("write", 0, 1))
        assert len(lm.generate_until([request], disable_tqdm=True)) == 1
        # Rounding leaves some of the steps of Dream's schedule nothing to unmask.
        assert 4 < lm.denoiser.forward_passes <= 8
        assert lm.get_model_info()["mdlm"]["tasks"]["write"]["masks"] == [8, 8]
    assert lm.get_model_info()["mdlm"]["preset"] == name


def test_an_explicit_option_wins_over_the_preset() -> None:
    explicit = {"preset": "llada-8b-instruct/gsm8k-blocks", "steps": "32", "temperature": 0.5}
    decoding = split_model_arguments(explicit, default_seed=0).decoding
    assert (decoding.n_masks, decoding.block_length) == (256, 8)
    assert (decoding.steps, decoding.temperature) == (32, 0.5)


def test_a_request_wins_over_the_preset_except_for_sampling_keys() -> None:
    arguments = split_model_arguments({"preset": "dream-7b-instruct/gsm8k"}, default_seed=0)
    request = {"do_sample": False, "temperature": 0.0, "top_p": 1.0, "steps": 16}
    options = parse_gen_kwargs(request, arguments.decoding, arguments.explicit).options
    assert (options.temperature, options.top_p, options.steps) == (0.1, 0.9, 16)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("llada-8b-instruct/gms8k", "did you mean llada-8b-instruct/gsm8k?"),
        ("qqq", "`python -m mdlm_lm_eval.presets` lists them all"),
        ("../presets/llada-8b-base/gsm8k", "llada-8b-base/gsm8k"),
        (5, "unknown preset='5'"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_nearest(name: object, hint: str) -> None:
    with pytest.raises(OptionError) as error:
        split_model_arguments({"preset": name}, default_seed=0)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


def test_presets_are_listed_by_the_command_that_the_error_names() -> None:
    listed = subprocess.run([sys.executable, "-m", "mdlm_lm_eval.presets"], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == preset_names()


def test_the_documentation_tells_every_preset_as_it_is(settings: dict[str, dict[str, str]]) -> None:
    parsed = {
        name: {key: yaml.safe_load(value) for key, value in options.items()} for name, options in settings.items()
    }
    assert parsed == {name: load_preset(name) for name in preset_names()}


def test_every_preset_has_one_whole_command() -> None:
    named = []
    for command in COMMANDS:
        found = re.search(r"pretrained=([^,]+),preset=([^/]+)/([^,]+),dtype=bfloat16", command)
        assert found, command
        pretrained, model, benchmark = found.groups()
        assert pretrained == MODELS[model]
        assert re.search(r" --tasks \w", command)
        assert command.startswith("HF_ALLOW_CODE_EVAL=1 ") == ("humaneval" in benchmark or "mbpp" in benchmark)
        assert ("--apply_chat_template" in command) == (not model.endswith("-base"))
        named.append(f"{model}/{benchmark}")
    assert sorted(named) == preset_names()
