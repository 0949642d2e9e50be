"""Families' reference code and samplers, and Fast-dLLM's, against ours (float32, temperature 0)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.selection import unmask_counts
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.likelihood.corruptions import Corruption
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model.denoiser import Denoiser
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


# Block diffusion: token for token and pass for pass

EOS = 158
NAMES = {"n_masks": "gen_length", "block_length": "block_length", "steps_per_block": "steps"}
Setting = dict[str, Any]


def reached(options: dict[str, Any]) -> DecodingOptions:
    """Thresholds above 1 are never reached."""
    thresholds = {name: None for name, value in options.items() if name.endswith("threshold") and (value or 0) > 1}
    return DecodingOptions(**{"early_exit": False} | options | thresholds)


def llada2(setting: Setting) -> tuple[DecodingOptions, list[int]]:
    """`generate` of LLaDA2.0."""
    options = named(setting, **NAMES, early_exit="eos_early_stop", confidence_threshold="threshold")
    if (least := setting.get("minimal_topk", 1)) > 1:
        options["steps_per_block"] = min(setting["steps"], setting["gen_length"] // least)
    return reached(options | {"schedule": "llada2"}), [EOS]


def llada21(setting: Setting) -> tuple[DecodingOptions, list[int]]:
    """`generate` of LLaDA2.1, which goes on behind an EOS unless it is told to stop."""
    names = {"editing_threshold": "editing_threshold", "max_post_steps": "max_post_steps"}
    options = named(setting, **NAMES, **names, early_exit="eos_early_stop", confidence_threshold="threshold")
    options["steps_per_block"] = -(-setting["block_length"] // setting.get("num_to_transfer", 1))
    return reached(options), [EOS] if setting.get("eos_early_stop") else []


def sdar(setting: Setting) -> tuple[DecodingOptions, list[int]]:
    """`generate.py` and the evaluation's sampler; the former's own takes confidences after top_k=1: all are 1."""
    names = {"steps_per_block": "denoising_steps", "confidence_threshold": "confidence_threshold"}
    options = named(setting, **NAMES | names) | {"top_k": 1 if "its own sampler" in setting["code"] else None}
    options["unmasking"] = "left_to_right" if setting["remasking_strategy"] == "sequential" else "confidence"
    return reached(options), [EOS] if setting.get("stop") else []


def a2d_bd3lm(setting: Setting) -> tuple[DecodingOptions, list[int]]:
    """`BD3LMSampler`."""
    options = named(setting, n_masks="max_new_tokens", block_length="block_size", cfg_scale="cfg_scale")
    n_blocks = -(-setting["max_new_tokens"] // setting["block_size"])
    options["steps_per_block"] = setting.get("steps_per_block") or -(-setting["steps"] // n_blocks)
    return DecodingOptions(**options, schedule="bd3lm"), [EOS]


def fast_dllm_v2(setting: Setting) -> tuple[DecodingOptions, list[int]]:
    """`generate`, which returns the first token of the block behind the last one too."""
    names = {"small_block_length": "small_block_size", "confidence_threshold": "threshold"}
    prompt, length = setting["prompt_length"], setting["block_size"]
    n_masks = prompt // length * length + setting["max_new_tokens"] // length * length + 1 - prompt
    return DecodingOptions(n_masks=n_masks, **named(setting, **names, block_length="block_size")), [EOS]


BLOCKS = {
    "llada2": llada2,
    "llada21": llada21,
    "sdar": sdar,
    "a2d_bd3lm": a2d_bd3lm,
    "fast_dllm_v2": fast_dllm_v2,
}


def settings_of(family: str) -> list[tuple[int, Setting]]:
    """All but the one that keeps a sub-block's approximate cache, which is not offered."""
    settings = facts_of(family)["generate"]
    return [(k, setting) for k, setting in enumerate(settings) if not setting.get("use_block_cache")]


@pytest.fixture(scope="module")
def loaded() -> dict[str, tuple[Denoiser, dict[str, Tensor]]]:
    """Each family's model (A2D's also shifted, which one setting asks for) and golden tensors."""
    found = {}
    for family in BLOCKS:
        mask = {"mask_token_id": facts_of(family)["mask_token_id"]}
        found[family] = load(family, **mask), tensors_of(family)
    shifted = load("a2d_bd3lm", shift_logits=True, **mask)
    found["a2d_bd3lm shifted"] = shifted, found["a2d_bd3lm"][1]
    return found


def prompts_and_completions(family: str, k: int, tensors: dict[str, Tensor]) -> list[tuple[list[int], list[int]]]:
    """Of each row the prompt, and what the reference filled in behind it."""
    output = tensors[f"generate.{k}.output"].tolist()
    if family == "a2d_bd3lm":
        prompts = [tensors[f"generate.{k}.prompt_ids.{row}"].tolist() for row in range(len(output))]
        length = settings_of(family)[k][1]["block_size"]
        width = -(-max(map(len, prompts)) // length) * length  # prompts are right-aligned in it
        return [(prompt, row[width:]) for prompt, row in zip(prompts, output, strict=True)]
    (prompt,), (row,) = tensors[f"generate.{k}.prompt_ids"].tolist(), output
    return [(prompt, row if family.startswith("llada2") else row[len(prompt) :])]


@pytest.mark.parametrize("family", BLOCKS)
def test_every_setting_of_block_diffusion_matches_token_for_token(family: str, loaded: dict[str, Any]) -> None:
    for k, setting in settings_of(family):
        denoiser, tensors = loaded[f"{family} shifted" if setting.get("right_shift_logits") else family]
        options, stop_ids = BLOCKS[family](setting)
        rows = prompts_and_completions(family, k, tensors)
        canvases = [
            build_canvas(
                prompt,
                way_of(options, denoiser.attention),
                mask_token_id=denoiser.mask_token_id,
                max_length=denoiser.max_length,
            )[0]
            for prompt, _ in rows
        ]
        before = denoiser.forward_passes
        completions = decode_canvases(denoiser, canvases, options, eos_ids=stop_ids)
        passes = denoiser.forward_passes - before
        for completion, (_, expected) in zip(completions, rows, strict=True):
            ids = completion.token_ids
            # Where the reference returns the whole canvas, it goes on behind an EOS, or behind what was asked for.
            assert ids[: len(expected)] == expected[: len(ids)], (family, k, setting)
            assert len(ids) == options.n_masks or EOS in ids, (family, k, setting)
            # LLaDA2.1's looks at full blocks once more, though it may not edit; storing passes are counted by block.
            if family == "llada2" or (family == "llada21" and setting["editing_threshold"] <= 1):
                assert completion.cost.steps == setting["forward_passes"], (family, k, setting)
        if family == "sdar":  # which stores the last block too
            assert passes == setting["forward_passes"] - 1, (k, setting)
        if family in ("a2d_bd3lm", "fast_dllm_v2"):
            guided = 2 if options.cfg_scale > 0 else 1
            assert guided * passes == setting["forward_passes"], (family, k, setting)


@pytest.mark.parametrize("family", ["llada2", "sdar", "fast_dllm_v2", "a2d_bd3lm"])
@pytest.mark.parametrize("changes", [{}, {"early_exit": False}, {"steps_per_block": 3, "schedule": "llada2"}])
def test_masks_that_no_returned_block_sees_change_nothing(
    family: str, changes: dict[str, Any], loaded: dict[str, Any]
) -> None:
    """Neither answers nor passes; of A2D, where blocks begin behind the prompt, as long as no block is shared."""
    denoiser, tensors = loaded[family]
    prompt = prompts_and_completions(family, 0, tensors)[0][0]
    found = []
    for n_masks in (12, 24, 200):
        options = replace(DecodingOptions(n_masks=n_masks, block_length=4), **changes)
        before = denoiser.forward_passes
        answers = decode(denoiser, [prompt[:9], prompt[:7]], options, max_gen_toks=12)
        found.append((answers, denoiser.forward_passes - before))
    assert len(found[0][0][0]) == 12
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("schedule", "passes"), [("llada2", 8), ("linear", 32)])
def test_llada2_takes_no_more_steps_than_tokens_are_asked_for(
    schedule: str, passes: int, loaded: dict[str, Any]
) -> None:
    """`generate` of LLaDA2.0: steps = min(steps, gen_length), of a block of 32 masks."""
    denoiser = loaded["llada2"][0]
    options = DecodingOptions(n_masks=8, block_length=32, steps_per_block=32, schedule=schedule, early_exit=False)
    before = denoiser.forward_passes
    decode(denoiser, [[1, 2, 3, 4] * 16], options)
    assert denoiser.forward_passes - before == 1 + passes


def test_the_schedule_of_a2d_rounds_as_its_reference() -> None:
    schedule = facts_of("a2d_bd3lm")["transfer_schedule"]
    assert len(schedule) == 90
    for name, expected in schedule.items():
        n_masks, steps = map(int, name.split("/"))
        assert [count for count in unmask_counts(n_masks, steps, "bd3lm") if count] == expected
