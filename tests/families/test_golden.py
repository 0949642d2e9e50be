"""LLaDA, Dream and LLaDA-MoE against their reference code, and Fast-dLLM's samplers (float32, temperature 0)."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.likelihood.corruptions import Corruption
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions
from tests.support.reference import assert_close, facts_of, load, named, tensors_of

FAMILIES = {"llada": 6, "dream": 5, "llada_moe": 6}  # and how many settings were decoded with
FAST_DLLM = {"fast_dllm_llada": 60, "fast_dllm_dream": 38}
DREAM_ORDERS = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("widths", [(0, 0), (5, 0), (0, 5)])
def test_logits_match_the_reference_whatever_the_padding(family: str, widths: tuple[int, int]) -> None:
    golden, denoiser = tensors_of(family), load(family)
    ids, expected = golden["logits.input_ids"], golden["logits.output"]  # [3, 24], [3, 24, 160]
    if family == "dream":
        expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
    rows = torch.nn.functional.pad(ids, widths, value=denoiser.pad_token_id)
    real = torch.nn.functional.pad(torch.ones_like(ids), widths, value=0)
    logits = denoiser.logits(rows, real, real.flatten().nonzero().squeeze(1)).view_as(expected)
    vocabulary = [token for token in range(160) if token != denoiser.mask_token_id]
    assert_close(logits[..., vocabulary], expected[..., vocabulary])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_generation_setting_matches_token_for_token(family: str) -> None:
    denoiser, tensors, settings = load(family), tensors_of(family), facts_of(family)["generate"]
    prompts = tensors["generate.prompt_ids"].tolist()
    assert len(settings) == FAMILIES[family]
    for number, setting in enumerate(settings):
        options = named(
            setting, n_masks="gen_length", block_length="block_length", cfg_scale="cfg_scale", steps="steps"
        )
        if "alg" in setting:
            options |= {"n_masks": setting["max_new_tokens"], "unmasking": DREAM_ORDERS[setting["alg"]]}
            options |= {"schedule": "dream"}
        expected = tensors[f"generate.{number}.sequences"][:, 12:].tolist()
        assert decode(denoiser, prompts, DecodingOptions(**options)) == expected, setting
        whole = DecodingOptions(**options, early_exit=False)
        assert [decode(denoiser, [prompt], whole)[0] for prompt in prompts] == expected, setting


def test_reference_estimate_from_given_corruptions() -> None:
    """LLaDA's own likelihood code on its tiny checkpoint: sum of cross-entropy / p_mask, averaged over four masks."""
    golden, n_prompt = tensors_of("llada"), facts_of("llada")["prompt_length"]
    sequence, samples = golden["likelihood.sequence"][0].tolist(), len(golden["likelihood.noisy"])
    corruptions = []
    for noisy, p_mask in zip(golden["likelihood.noisy"], golden["likelihood.p_mask"].tolist(), strict=True):
        masked = tuple((noisy[n_prompt:] == 159).nonzero()[:, 0].tolist())
        corruptions.append(Corruption(masked, masked, 1 / (p_mask * samples)))
    request, how = LikelihoodRequest(sequence[:n_prompt], sequence[n_prompt:]), {"batch_size": 3, "max_length": 64}
    [(estimate, *_)] = score(
        load("llada"), [request], LikelihoodOptions(), corruptions_of=lambda *_: corruptions, **how
    )
    assert -estimate == pytest.approx(golden["likelihood.nll"].item(), abs=1e-4)


# Fast-dLLM


def fast(setting: dict[str, Any]) -> DecodingOptions | None:
    """Our options for a sampler's arguments.

    None for Dream's threshold without blocks: there it takes tokens back from a schedule, so that it only slows it.
    """
    alg = setting.get("alg")
    if setting["cache"] == "none" and alg == "confidence_threshold":
        return None
    options = named(setting, steps="steps", block_length="block_length", cache="cache", parallel_factor="factor")
    options |= named(
        setting, confidence_threshold="threshold", n_masks="gen_length" if alg is None else "max_new_tokens"
    )
    unmasking = "entropy" if alg == "entropy" else "confidence"
    return DecodingOptions(**options, schedule="linear" if alg is None else "dream", unmasking=unmasking)


@pytest.mark.parametrize("name", FAST_DLLM)
def test_every_setting_of_fast_dllm_matches_in_a_batch_of_unequal_prompts_and_alone(name: str) -> None:
    denoiser, tensors, n_checked, n_parallel = load(name), tensors_of(name), 0, 0
    prompts = [tensors[f"generate.prompt.{row}"].tolist() for row in range(3)]
    where: dict[str, Any] = {"mask_token_id": denoiser.mask_token_id, "max_length": denoiser.max_length}
    for k, setting in enumerate(facts_of(name)["generate"]):
        if (options := fast(setting)) is None:
            continue
        n_checked += 1
        expected = tensors[f"generate.{k}.completions"].tolist()
        canvases = [build_canvas(prompt, way_of(options, denoiser.attention), **where)[0] for prompt in prompts]
        together = decode_canvases(denoiser, canvases, options)
        assert [row.token_ids for row in together] == expected, setting
        # Without a cache, a step of Dream's schedule that unmasks nothing is left out.
        empty = options.schedule == "dream" and options.cache == "none" and options.steps == options.n_masks
        assert [row.cost.forward_passes for row in together] == [nfe - empty for nfe in setting["nfe"]], setting
        if k % 20 == 0:
            assert [decode_canvases(denoiser, [row], options)[0] for row in canvases] == together, setting
        if options.is_parallel and options.block_length is not None:
            n_parallel += 1
            if n_parallel % 6 == 1:  # its commands set one step a block beside a threshold, which is no quota
                assert isinstance(options.n_masks, int)
                few = replace(options, steps=options.n_masks // options.block_length)
                assert decode(denoiser, prompts, few) == expected, setting
    assert n_checked == FAST_DLLM[name]
    assert n_parallel > 9
