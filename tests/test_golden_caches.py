"""Fast-dLLM's samplers for LLaDA and Dream: approximate caches and parallel rules, token for token."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mdlm_lm_eval.decoding import decode, decode_canvases
from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.families import load_denoiser
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
        canvases = [
            build_canvas(prompt, options, mask_token_id=denoiser.mask_token_id, max_length=denoiser.max_length)[0]
            for prompt in prompts
        ]
        together = decode_canvases(denoiser, canvases, options)
        assert [row.token_ids for row in together] == expected, setting
        # Without a cache, a step of Dream's schedule that unmasks nothing is left out.
        empty = options.schedule == "dream" and options.cache == "none" and options.steps == options.n_masks
        assert [row.cost.forward_passes for row in together] == [nfe - empty for nfe in setting["nfe"]], setting
        if k % 7 == 0:
            assert [decode_canvases(denoiser, [row], options)[0] for row in canvases] == together, setting
    assert n_checked == n_settings


@pytest.mark.parametrize("name", ["fast_dllm_llada", "fast_dllm_dream"])
def test_parallel_rules_have_no_quota_of_steps(name: str) -> None:
    """Fast-dLLM's own commands set one step a block beside a threshold (`steps=$((length / block_length))`)."""
    denoiser = load_denoiser(str(GOLDEN / name), dtype="float32")
    tensors = load_file(GOLDEN / name / "golden.safetensors")
    prompts = [tensors[f"generate.prompt.{row}"].tolist() for row in range(3)]
    n_checked = 0
    parallel = [
        (k, setting, options)
        for k, setting in enumerate(json.loads((GOLDEN / name / "golden.json").read_text())["generate"])
        if (options := options_of(setting)) and options.is_parallel and options.block_length is not None
    ]
    for k, setting, options in parallel[::3]:
        assert isinstance(options.n_masks, int)
        few = replace(options, steps=options.n_masks // options.block_length)
        n_checked += 1
        assert decode(denoiser, prompts, few) == tensors[f"generate.{k}.completions"].tolist(), setting
    assert n_checked > 3
