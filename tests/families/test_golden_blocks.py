"""The block-diffusion families' reference samplers, token for token and pass for pass (float32, temperature 0)."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import build_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.selection import unmask_counts
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions
from tests.support.reference import facts_of, load, named, tensors_of

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


FAMILIES = {"llada2": llada2, "llada21": llada21, "sdar": sdar, "a2d_bd3lm": a2d_bd3lm, "fast_dllm_v2": fast_dllm_v2}


def settings_of(family: str) -> list[tuple[int, Setting]]:
    """All but the one that keeps a sub-block's approximate cache, which is not offered."""
    settings = facts_of(family)["generate"]
    return [(k, setting) for k, setting in enumerate(settings) if not setting.get("use_block_cache")]


@pytest.fixture(scope="module")
def loaded() -> dict[str, tuple[Denoiser, dict[str, Tensor]]]:
    """Each family's model (A2D's also shifted, which one setting asks for) and golden tensors."""
    found = {}
    for family in FAMILIES:
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


@pytest.mark.parametrize("family", FAMILIES)
def test_every_generation_setting_matches_token_for_token(family: str, loaded: dict[str, Any]) -> None:
    for k, setting in settings_of(family):
        denoiser, tensors = loaded[f"{family} shifted" if setting.get("right_shift_logits") else family]
        options, stop_ids = FAMILIES[family](setting)
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
