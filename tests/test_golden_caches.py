"""Fast-dLLM's samplers for LLaDA and Dream: approximate caches and parallel rules, token for token."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import DecodingOptions

GOLDEN = Path(__file__).parent / "golden"


def options_of(setting: dict[str, Any]) -> DecodingOptions | None:
    """Our options for a reference sampler's arguments.

    None for Dream's threshold without blocks: there it takes tokens back from a schedule, so that it only slows it.
    """
    alg = setting.get("alg")
    if setting["cache"] == "none" and alg == "confidence_threshold":
        return None
    return DecodingOptions(
        n_masks=setting["gen_length"] if alg is None else setting["max_new_tokens"],
        steps=setting["steps"],
        block_length=setting.get("block_length"),
        cache=setting["cache"],
        schedule="linear" if alg is None else "dream",
        unmasking="entropy" if alg == "entropy" else "confidence",
        confidence_threshold=setting.get("threshold"),
        parallel_factor=setting.get("factor"),
    )


@pytest.mark.parametrize(("name", "n_settings"), [("fast_dllm_llada", 60), ("fast_dllm_dream", 38)])
def test_every_setting_matches_in_a_batch_of_unequal_prompts_and_alone(name: str, n_settings: int) -> None:
    denoiser = load_denoiser(str(GOLDEN / name), dtype="float32")
    tensors = load_file(GOLDEN / name / "golden.safetensors")
    prompts = [tensors[f"generate.prompt.{row}"].tolist() for row in range(3)]
    settings = json.loads((GOLDEN / name / "golden.json").read_text())["generate"]
    n_checked = 0
    for k, setting in enumerate(settings):
        options = options_of(setting)
        if options is None:
            continue
        n_checked += 1
        expected = tensors[f"generate.{k}.completions"].tolist()
        assert decode(denoiser, prompts, options) == expected, setting
        for prompt, completion, nfe in zip(prompts, expected, setting["nfe"], strict=True):
            before = denoiser.forward_passes
            assert decode(denoiser, [prompt], options) == [completion], setting
            # Without a cache, steps of Dream's schedule that unmask nothing are left out.
            empty = options.schedule == "dream" and options.cache == "none" and options.steps == options.n_masks
            assert denoiser.forward_passes - before == nfe - empty, setting
    assert n_checked == n_settings
