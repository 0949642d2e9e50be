"""Decoding of iLLaDA and Nemotron-Labs-Diffusion: the tokens and passes of their reference code."""

import json
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from safetensors.torch import load_file

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.families import load_denoiser, load_tokenizer
from mdlm_lm_eval.likelihood import LikelihoodRequest, score
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from tests.conftest import choice, generation

GOLDEN = Path(__file__).parent / "golden"
NEMOTRON = json.loads((GOLDEN / "nemotron_labs_diffusion" / "golden.json").read_text())["generate"]


def load(folder: str) -> Denoiser:
    mask = {"mask_token_id": 159} if folder == "llada22" else {}
    return load_denoiser(str(GOLDEN / folder), dtype="float32", **mask)


def golden(folder: str, number: int) -> tuple[list[int], list[int]]:
    """Prompt and what the reference put behind it."""
    tensors = load_file(GOLDEN / folder / "golden.safetensors")
    prompt = tensors[f"generate.{number}.prompt_ids"].flatten().tolist()
    return prompt, tensors[f"generate.{number}.output"].flatten().tolist()[len(prompt) :]


def until_stop(tokens: list[int], stops: set[int]) -> list[int]:
    ends = [n for n, token in enumerate(tokens, start=1) if token in stops]
    return tokens[: ends[0]] if ends else tokens


def nemotron_options(setting: dict[str, Any]) -> dict[str, Any]:
    """Ours for a setting of the reference."""
    names = {"block_length": "block_length", "threshold": "confidence_threshold", "causal_context": "causal_context"}
    options = {ours: setting[name] for name, ours in names.items() if name in setting}
    if "max_thinking_tokens" in setting:
        options["max_thinking_tokens"] = setting["max_thinking_tokens"]
    return options | {"mode": setting["mode"], "n_masks": setting["max_new_tokens"]}


@pytest.mark.parametrize(
    ("number", "cache"),
    [(n, c) for n, s in enumerate(NEMOTRON) for c in ("auto", "none") if (s["mode"], c) != ("linear_spec", "none")],
)
def test_nemotron_decodes_as_its_reference_does(number: int, cache: str) -> None:
    setting, denoiser = NEMOTRON[number], load("nemotron_labs_diffusion")
    prompt, expected = golden("nemotron_labs_diffusion", number)
    stops = {setting["stop_token_id"]} if "stop_token_id" in setting else set()
    close = [setting["end_think_token_id"]] if "end_think_token_id" in setting else []
    options = DecodingOptions(**nemotron_options(setting), cache=cache)
    (answer,) = decode(denoiser, [prompt], options, stop_ids=stops, end_think_ids=close)
    assert answer == until_stop(expected, stops)[: setting["max_new_tokens"]]
    if cache == "auto":
        # It stores the last block, too, and denoises one that begins with an end.
        begins_with_end = answer[-1] in stops and (len(answer) - 1) % setting.get("block_length", 1) == 0
        extra = 1 + begins_with_end if setting["mode"] == "diffusion" else 0
        assert denoiser.forward_passes == setting["forward_passes"] - extra


def test_rows_of_nemotron_do_not_depend_on_their_neighbours() -> None:
    denoiser = load("nemotron_labs_diffusion")
    prompts = [golden("nemotron_labs_diffusion", number)[0] for number in (1, 3, 5, 6, 8)]
    lengths = set()
    for more in ({}, {"confidence_threshold": 0.5}, {"mode": "ar"}, {"mode": "linear_spec"}, {"causal_context": False}):
        options = DecodingOptions(n_masks=20, block_length=None if more.get("mode") == "ar" else 8, **more)
        together = decode(denoiser, prompts, options, stop_ids=[16, 60])
        assert together == [decode(denoiser, [prompt], options, stop_ids=[16, 60])[0] for prompt in prompts]
        lengths |= {len(answer) for answer in together}
    assert len(lengths) > 2


ILLADA = json.loads((GOLDEN / "illada" / "golden.json").read_text())["generate"]


@pytest.mark.parametrize("number", range(len(ILLADA)))
def test_illada_decodes_as_its_reference_does(number: int) -> None:
    """Full canvases, `var` (blocks that are appended one by one), and the boost of the end of thinking."""
    setting, denoiser = ILLADA[number], load("illada")
    prompt, expected = golden("illada", number)
    steps = {"steps_per_block" if setting["var"] else "steps": setting["steps"]}
    options = DecodingOptions(
        n_masks=setting["gen_length"],
        block_length=setting["block_length"],
        append_blocks=setting["var"],
        cfg_scale=setting.get("cfg_scale", 0.0),
        end_think_boost=setting.get("end_think_logit_boost", 0.0),
        end_think_power=setting.get("end_think_boost_power", 1.0),
        early_exit=False,
        **steps,
    )
    stops = {*setting.get("stop_token_ids", ()), 2} if setting["var"] else set()
    close = setting.get("end_think_token_ids", [])
    (answer,) = decode(denoiser, [prompt], options, stop_ids=stops, end_think_ids=close)
    assert answer == until_stop(expected, stops)
    assert denoiser.forward_passes == setting["forward_passes"]
    if number % 3 == 0:
        others = [prompt[:3], prompt + prompt[:5]]
        alone = [decode(denoiser, [p], options, stop_ids=stops, end_think_ids=close)[0] for p in others]
        together = decode(denoiser, [prompt, *others], options, stop_ids=stops, end_think_ids=close)
        assert together == [answer, *alone]


def test_options_of_2026_reach_decoding_through_the_command_line() -> None:
    """A published setting of iLLaDA: prompt and end of thinking are words of its tokenizer."""
    prompt, expected = golden("illada", 14)
    setting = {"block_length": 8, "steps_per_block": 8, "append_blocks": "true", "end_think": "w58 w84"}
    setting |= {"end_think_boost": "100", "n_masks": 32}
    lm = MDLM(str(GOLDEN / "illada"), dtype="float32", device="cpu", batch_size=2, add_bos_token=False, **setting)
    text = lm.tokenizer.decode(prompt)
    assert lm.tok_encode(text) == prompt
    request = Instance("generate_until", {}, (text, {"until": [], "max_gen_toks": 32}), 0, ("task", 0, 1))
    (answer,) = lm.generate_until([request, request], disable_tqdm=True)[:1]
    assert answer == lm.tokenizer.decode(until_stop(expected, {2}), skip_special_tokens=True)


@pytest.mark.parametrize("mode", ["ar", "linear_spec"])
def test_one_checkpoint_is_evaluated_as_a_causal_model_too(mode: str) -> None:
    lm = MDLM(
        str(GOLDEN / "nemotron_labs_diffusion"),
        tokenizer=load_tokenizer(str(GOLDEN / "illada")),
        dtype="float32",
        mode=mode,
    )
    prompt = lm.tok_encode("w20 w30")
    (answer,) = decode(lm.denoiser, [prompt], DecodingOptions(mode="ar", n_masks=6), stop_ids=lm.eos_ids)
    (text,) = lm.generate_until([generation("w20 w30", until=[], max_gen_toks=6)], disable_tqdm=True)
    assert text == lm.tokenizer.decode(answer, skip_special_tokens=True)
    ((log_likelihood, _),) = lm.loglikelihood([choice("w20 w30", " w40")], disable_tqdm=True)
    continuation = lm.tok_encode("w20 w30 w40")[len(prompt) :]
    request = LikelihoodRequest(prompt, continuation)
    options = LikelihoodOptions(mode="ar")
    assert score(lm.denoiser, [request], options, batch_size=1, max_length=64)[0][0] == log_likelihood
    recorded = lm.get_model_info()["mdlm"]
    assert (recorded["decoding"]["mode"], recorded["likelihood"]["mode"]) == (mode, mode)


@pytest.mark.parametrize(
    ("folder", "options", "sentence"),
    [
        ("illada", {"mode": "ar"}, "mode must be diffusion"),
        ("illada", {"causal_context": False}, "causal_context must be true"),
        ("illada", {"append_blocks": True, "block_length": 8, "cache": "dual"}, "append_blocks must be false"),
        ("illada", {"end_think_boost": 3.0}, "end_think=</think> must be one token"),
        ("nemotron_labs_diffusion", {"append_blocks": True}, "append_blocks must be false"),
        ("nemotron_labs_diffusion", {"mode": "ar", "block_length": 8}, "block_length=8 does not work with mode=ar"),
        ("nemotron_labs_diffusion", {"mode": "linear_spec", "temperature": 0.5}, "temperature=0.5 does not work"),
    ],
)
def test_what_a_model_cannot_do_is_refused(folder: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        decode(load(folder), [[7, 8, 9]], DecodingOptions(n_masks=8, **options))


LLADA22 = json.loads((GOLDEN / "llada22" / "golden.json").read_text())["generate"]


@pytest.mark.parametrize("number", range(len(LLADA22)))
def test_llada22_inserts_and_deletes_as_an_independent_decoder(number: int) -> None:
    setting, denoiser = LLADA22[number], load("llada22")
    prompt = load_file(GOLDEN / "llada22" / "golden.safetensors")[f"generate.{number}.prompt_ids"].flatten().tolist()
    expected = load_file(GOLDEN / "llada22" / "golden.safetensors")[f"generate.{number}.output"].flatten().tolist()
    options = DecodingOptions(
        n_masks=setting["gen_length"],
        block_length=setting["block_length"],
        steps_per_block=setting["steps_per_block"],
        confidence_threshold=setting["threshold"],
        editing_threshold=setting["editing_threshold"],
        max_post_steps=setting["max_post_steps"],
        max_steps_per_block=setting.get("max_steps_per_block", 1000),
    )
    stops = {setting.get("stop_token_id", 158)}
    (answer,) = decode(denoiser, [prompt], options, stop_ids=stops)
    assert answer == until_stop(expected, stops)
    if number % 3 == 0:
        others = [prompt[:3], prompt + prompt[:6]]
        together = decode(denoiser, [prompt, *others], options, stop_ids=stops)
        assert together == [answer, *(decode(denoiser, [one], options, stop_ids=stops)[0] for one in others)]
