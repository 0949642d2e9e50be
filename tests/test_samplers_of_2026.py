"""Samplers that weigh positions, compare passes or take tokens back: tokens and passes of their reference code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mdlm_lm_eval.decoding import decode, decode_canvases
from mdlm_lm_eval.decoding.canvas import build_infill_canvas
from mdlm_lm_eval.families import load_denoiser
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.resolve import resolve

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = json.loads((GOLDEN / "remasking" / "golden.json").read_text())["generate"]
TENSORS = load_file(GOLDEN / "remasking" / "golden.safetensors")
MASK = 159


def load() -> Denoiser:
    return load_denoiser(str(GOLDEN / "fast_dllm_llada"), dtype="float32", mask_token_id=MASK)


def ours(setting: dict[str, Any]) -> DecodingOptions:
    """Our options for a setting of the reference."""
    options: dict[str, Any] = {"n_masks": setting["gen_length"], "block_length": setting["block_length"]}
    sampler = setting["sampler"]
    if sampler == "pc":
        options |= {"unmasking": "position_calibrated", "position_decay": setting["lambd"]}
        options |= {"calibration_cap": setting["alpha"], "steps": setting["steps"]}
        options["cfg_scale"] = setting.get("cfg_scale", 0.0)
    if sampler == "remdm":
        options |= {"remasking": "remdm", "remask_tokens": setting["remdm_number"]}
    if sampler == "rcr":
        rules = {"low_confidence": "confidence", "topk_margin": "margin", "entropy": "entropy"}
        options |= {
            "remasking": "rcr",
            "unmasking": rules[setting["conf_alg"]],
            "schedule": f"maskgit_{setting['mode']}",
        }
        options["steps_per_block"] = setting["steps"] // (setting["gen_length"] // setting["block_length"])
    if sampler == "wino":
        options |= {"remasking": "wino", "confidence_threshold": setting["threshold"]}
        options["remask_threshold"] = setting["threshold_back"]
    if sampler == "klass":
        options |= {"confidence_threshold": setting["conf_threshold"], "kl_threshold": setting["kl_threshold"]}
        options |= {"kl_history": setting["kl_history_length"], "steps": setting["steps"]}
        options["unmask_strategy"] = setting.get("unmask_strategy", "all")
    return DecodingOptions(**options, early_exit=False)


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_a_sampler_does_as_its_reference(number: int) -> None:
    setting, denoiser = SETTINGS[number], load()
    prompt, expected = (TENSORS[f"generate.{number}.{what}"].flatten().tolist() for what in ("prompt_ids", "output"))
    stops = {setting["stop_token_id"]} if "stop_token_id" in setting else set()
    how: dict[str, Any] = {"stop_ids": stops, "token_frequencies": TENSORS["pc.background"]}
    (answer,) = decode(denoiser, [prompt], ours(setting), **how)
    assert answer == expected[len(prompt) :][: len(answer)]
    assert len(answer) == setting["gen_length"] or answer[-1] in stops
    assert denoiser.forward_passes == setting["forward_passes"]
    # What is returned may still be taken back when it is filled: early exit gives the same.
    exits = replace(ours(setting), early_exit=True)
    assert decode(denoiser, [prompt], exits, max_gen_toks=5, **how) == [answer[:5]]
    others = [prompt[:4], prompt + prompt[:3]]
    together = decode(denoiser, [prompt, *others], ours(setting), **how)
    assert together == [decode(denoiser, [one], ours(setting), **how)[0] for one in [prompt, *others]]


def test_frequencies_come_from_a_file(tmp_path: Path) -> None:
    prompt, path = TENSORS["generate.22.prompt_ids"].flatten().tolist(), str(tmp_path / "background.safetensors")
    save_file({"frequencies": TENSORS["pc.background"]}, path)
    settings = {"n_masks": 32, "unmasking": "position_calibrated"}
    (answer,) = decode(load(), [prompt], DecodingOptions(**settings, token_frequencies=path))
    assert answer == TENSORS["generate.22.output"].flatten().tolist()[len(prompt) :]
    with pytest.raises(OptionError, match="needs token_frequencies"):
        decode(load(), [prompt], DecodingOptions(**settings))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"remasking": "wino"}, "needs confidence_threshold"),
        ({"remasking": "rcr", "confidence_threshold": 0.9}, "does not work with a parallel rule"),
        ({"remasking": "remdm", "steps": 4}, "steps must be auto"),
        (
            {"remasking": "rcr", "cache": "dual", "block_length": 4},
            "does not work with block-causal attention or cache",
        ),
        ({"kl_threshold": 0.1}, "needs confidence_threshold"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        decode(load(), [[1, 2, 3]], DecodingOptions(n_masks=8, **options))


def test_remasking_is_also_what_llada_calls_the_unmasking_rule() -> None:
    assert resolve({"remasking": "random"}).decoding.unmasking == "random"
    assert resolve({"remasking": "rcr"}).decoding.remasking == "rcr"


INFILLING = json.loads((GOLDEN / "infilling" / "golden.json").read_text())
INFILLED = load_file(GOLDEN / "infilling" / "golden.safetensors")


@pytest.mark.parametrize("number", range(len(INFILLING["infill"])))
def test_dreamon_fills_a_slot_as_its_reference(number: int) -> None:
    """BOS, prefix, masks, suffix, EOS, and padding that is attended to. Its token for more masks is banned there."""
    setting, names = INFILLING["infill"][number], ("prefix", "suffix", "canvas", "middle")
    prefix, suffix, expected, middle = (INFILLED[f"infill.{number}.{name}"].tolist() for name in names)
    denoiser, eos = load_denoiser(str(GOLDEN / "dream"), dtype="float32"), INFILLING["eos_token_id"]
    ending = [*suffix, eos, *[eos] * setting["padding"]]
    segments = [[INFILLING["bos_token_id"], *prefix], *[[] for _ in middle[1:]], ending]
    options = DecodingOptions(unmasking=setting["alg"], early_exit=False)
    where: dict[str, Any] = {"mask_token_id": denoiser.mask_token_id, "max_length": denoiser.max_length}
    canvas, _ = build_infill_canvas(segments, options, **where)
    assert list(canvas.token_ids) == expected
    (completion,) = decode_canvases(denoiser, [canvas], options, eos_ids=set(), end_of_turn_ids=set())
    assert completion.token_ids == middle
    assert denoiser.forward_passes == setting["forward_passes"]
