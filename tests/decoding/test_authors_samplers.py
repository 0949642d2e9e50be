"""Decoders and samplers of 2026: the tokens and passes of their reference code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from mdlm_lm_eval.checkpoints import load_tokenizer
from mdlm_lm_eval.decoding.canvas import Completion, build_canvas, build_infill_canvas
from mdlm_lm_eval.decoding.engine import decode_canvases
from mdlm_lm_eval.decoding.trace import as_recorded, replay
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from mdlm_lm_eval.resolve import resolve
from tests.conftest import choice, data, generation, refused
from tests.support.logged_traces import canvases_of
from tests.support.reference import GOLDEN, facts_of, generated, load, named, tensors_of

pytestmark = pytest.mark.slow

NEMOTRON = facts_of("nemotron_labs_diffusion")["generate"]


def until_stop(tokens: list[int], stops: set[int]) -> list[int]:
    ends = [n for n, token in enumerate(tokens, start=1) if token in stops]
    return tokens[: ends[0]] if ends else tokens


@pytest.mark.parametrize(
    ("number", "cache"),
    [
        *((n, "auto") for n in range(len(NEMOTRON))),
        *((n, "none") for n in range(0, len(NEMOTRON), 3) if NEMOTRON[n]["mode"] != "linear_spec"),
    ],
)
def test_nemotron_decodes_as_its_reference_does(number: int, cache: str) -> None:
    setting, denoiser = NEMOTRON[number], load("nemotron_labs_diffusion")
    prompt, expected = generated("nemotron_labs_diffusion", number)
    stops = {setting["stop_token_id"]} if "stop_token_id" in setting else set()
    close = [setting["end_think_token_id"]] if "end_think_token_id" in setting else []
    same = {name: name for name in ("block_length", "causal_context", "max_thinking_tokens", "mode")}
    ours = named(setting, n_masks="max_new_tokens", confidence_threshold="threshold", **same)
    options = DecodingOptions(**ours, cache=cache)
    (answer,) = decode(denoiser, [prompt], options, stop_ids=stops, end_think_ids=close)
    assert answer == until_stop(expected, stops)[: setting["max_new_tokens"]]
    if cache == "auto":
        # It stores the last block, too, and denoises one that begins with an end.
        begins_with_end = answer[-1] in stops and (len(answer) - 1) % setting.get("block_length", 1) == 0
        extra = 1 + begins_with_end if setting["mode"] == "diffusion" else 0
        assert denoiser.forward_passes == setting["forward_passes"] - extra


ILLADA = facts_of("illada")["generate"]


@pytest.mark.parametrize("number", range(len(ILLADA)))
def test_illada_decodes_as_its_reference_does(number: int) -> None:
    """Full canvases, `var` (blocks that are appended one by one), and the boost of the end of thinking."""
    setting, denoiser = ILLADA[number], load("illada")
    prompt, expected = generated("illada", number)
    names = {"n_masks": "gen_length", "block_length": "block_length", "append_blocks": "var", "cfg_scale": "cfg_scale"}
    names |= {"end_think_boost": "end_think_logit_boost", "end_think_power": "end_think_boost_power"}
    names["steps_per_block" if setting["var"] else "steps"] = "steps"
    options = DecodingOptions(**named(setting, **names), early_exit=False)
    stops = {*setting.get("stop_token_ids", ()), 2} if setting["var"] else set()
    close = setting.get("end_think_token_ids", [])
    (answer,) = decode(denoiser, [prompt], options, stop_ids=stops, end_think_ids=close)
    assert answer == until_stop(expected, stops)
    assert denoiser.forward_passes == setting["forward_passes"]


def test_options_of_2026_reach_decoding_through_the_command_line() -> None:
    """A published setting of iLLaDA: prompt and end of thinking are words of its tokenizer."""
    prompt, expected = generated("illada", 14)
    setting = {"block_length": 8, "steps_per_block": 8, "append_blocks": "true", "end_think": "w58 w84"}
    setting |= {"end_think_boost": "100", "n_masks": 32}
    lm = MDLM(str(GOLDEN / "illada"), dtype="float32", device="cpu", batch_size=2, add_bos_token=False, **setting)
    text = lm.tokenizer.decode(prompt)
    assert lm.tok_encode(text) == prompt
    request = generation(text, doc=0, until=[], max_gen_toks=32)
    (answer,) = lm.generate_until([request, request], disable_tqdm=True)[:1]
    assert answer == lm.tokenizer.decode(until_stop(expected, {2}), skip_special_tokens=True)


@pytest.mark.parametrize("mode", ["ar", "linear_spec"])
def test_one_checkpoint_is_evaluated_as_a_causal_model_too(mode: str) -> None:
    tokenizer = load_tokenizer(str(GOLDEN / "illada"))
    tokenizer.mask_token = None  # its own is another id than this model's
    lm = MDLM(
        str(GOLDEN / "nemotron_labs_diffusion"),
        tokenizer=tokenizer,
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


@pytest.mark.parametrize(("folder", "options", "sentence"), refused("decoding"))
def test_what_a_model_cannot_do_is_refused(folder: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        decode(load(folder), [[7, 8, 9]], DecodingOptions(n_masks=8, **options))


LLADA22 = facts_of("llada22")["generate"]


def llada22_options(setting: dict[str, Any]) -> DecodingOptions:
    same = ("block_length", "steps_per_block", "editing_threshold", "max_post_steps", "max_steps_per_block")
    names = {"n_masks": "gen_length", "confidence_threshold": "threshold", **{name: name for name in same}}
    return DecodingOptions(**{"max_steps_per_block": 1000} | named(setting, **names))


@pytest.mark.parametrize("number", range(len(LLADA22)))
def test_llada22_inserts_and_deletes_as_an_independent_decoder(number: int) -> None:
    setting, denoiser = LLADA22[number], load("llada22", mask_token_id=159)
    prompt, _ = generated("llada22", number)
    expected = tensors_of("llada22")[f"generate.{number}.output"].flatten().tolist()  # without its prompt
    options = llada22_options(setting)
    stops = {setting.get("stop_token_id", 158)}
    (answer,) = decode(denoiser, [prompt], options, stop_ids=stops)
    assert answer == until_stop(expected, stops)


SETTINGS = facts_of("remasking")["generate"]
TENSORS = tensors_of("remasking")


def tiny_llada() -> Denoiser:
    return load("fast_dllm_llada", mask_token_id=159)


# By the reference's name of a sampler: our options for it, and the reference's names of others.
SAMPLERS: dict[str, tuple[dict[str, Any], dict[str, str]]] = data("cases.json")["remasking samplers"]


def ours(setting: dict[str, Any]) -> DecodingOptions:
    """Our options for a setting of the reference."""
    own, names = SAMPLERS[setting["sampler"]]
    options = own | named(setting, n_masks="gen_length", block_length="block_length", **names)
    if setting["sampler"] == "rcr":
        rules = {"low_confidence": "confidence", "topk_margin": "margin", "entropy": "entropy"}
        options |= {"unmasking": rules[setting["conf_alg"]], "schedule": f"maskgit_{setting['mode']}"}
        options["steps_per_block"] = setting["steps"] // (setting["gen_length"] // setting["block_length"])
    return DecodingOptions(**options, early_exit=False)


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_a_sampler_does_as_its_reference(number: int) -> None:
    setting, denoiser = SETTINGS[number], tiny_llada()
    prompt, expected = generated("remasking", number)
    stops = {setting["stop_token_id"]} if "stop_token_id" in setting else set()
    how: dict[str, Any] = {"stop_ids": stops, "token_frequencies": TENSORS["pc.background"]}
    (answer,) = decode(denoiser, [prompt], ours(setting), **how)
    assert answer == expected[: len(answer)]
    assert len(answer) == setting["gen_length"] or answer[-1] in stops
    assert denoiser.forward_passes == setting["forward_passes"]
    # What is returned may still be taken back when it is filled: early exit gives the same.
    exits = replace(ours(setting), early_exit=True)
    assert decode(denoiser, [prompt], exits, max_gen_toks=5, **how) == [answer[:5]]


def test_frequencies_come_from_a_file(tmp_path: Path) -> None:
    (prompt, expected), path = generated("remasking", 22), str(tmp_path / "background.safetensors")
    save_file({"frequencies": TENSORS["pc.background"]}, path)
    settings = {"n_masks": 32, "unmasking": "position_calibrated"}
    (answer,) = decode(tiny_llada(), [prompt], DecodingOptions(**settings, token_frequencies=path))
    assert answer == expected
    with pytest.raises(OptionError, match="needs token_frequencies"):
        decode(tiny_llada(), [prompt], DecodingOptions(**settings))


@pytest.mark.parametrize(
    ("value", "effect"),
    [
        ("random", {"unmasking": "random"}),
        ("low_confidence", {}),
        ("rcr", {"sampler": "rcr"}),
        ("none", {}),
    ],
)
def test_remasking_is_what_llada_calls_the_unmasking_rule_and_was_the_sampler(
    value: str, effect: dict[str, str]
) -> None:
    assert resolve({"remasking": value}).decoding == resolve(effect).decoding
    assert resolve({}).request({"remasking": value}).options == resolve(effect).decoding


INFILLING = facts_of("infilling")
INFILLED = tensors_of("infilling")


@pytest.mark.parametrize("number", range(len(INFILLING["infill"])))
def test_dreamon_fills_a_slot_as_its_reference(number: int) -> None:
    """BOS, prefix, masks, suffix, EOS, and padding that is attended to. Its token for more masks is banned there."""
    setting, names = INFILLING["infill"][number], ("prefix", "suffix", "canvas", "middle")
    prefix, suffix, expected, middle = (INFILLED[f"infill.{number}.{name}"].tolist() for name in names)
    denoiser, eos = load("dream"), INFILLING["eos_token_id"]
    ending = [*suffix, eos, *[eos] * setting["padding"]]
    segments = [[INFILLING["bos_token_id"], *prefix], *[[] for _ in middle[1:]], ending]
    options = DecodingOptions(unmasking=setting["alg"], early_exit=False)
    where: dict[str, Any] = {"mask_token_id": denoiser.mask_token_id, "max_length": denoiser.max_length}
    canvas, _ = build_infill_canvas(segments, way_of(options, denoiser.attention), **where)
    assert list(canvas.token_ids) == expected
    (completion,) = decode_canvases(denoiser, [canvas], options, eos_ids=set(), end_of_turn_ids=set())
    assert completion.token_ids == middle
    assert denoiser.forward_passes == setting["forward_passes"]


def traced(denoiser: Denoiser, prompt: list[int], options: DecodingOptions, **more: Any) -> Completion:
    """The answer. Each of its events changes the canvas that those before it give, and all of them give its tokens."""
    where: dict[str, Any] = {"mask_token_id": denoiser.mask_token_id, "max_length": denoiser.max_length}
    canvas, _ = build_canvas(prompt, way_of(options, denoiser.attention), **where)
    (found,) = decode(denoiser, [prompt], options, return_completions=True, **more)
    begin, canvases = canvases_of(as_recorded(canvas.token_ids, len(prompt), found.events))
    assert begin == list(canvas.token_ids[len(prompt) :])
    assert canvases[-1][: len(found.token_ids)] == found.token_ids
    before = list(canvas.token_ids)
    for step, after in replay(canvas.token_ids, found.events):
        changed = [event for event in found.events if event.step == step and event.old is not None]
        assert [before[event.position] for event in changed] == [event.old for event in changed]
        before = after
    assert all(by.step for by in found.filled)
    return found


@pytest.mark.parametrize("number", range(0, len(LLADA22), 5))
def test_insertions_and_deletions_are_traced(number: int) -> None:
    prompt, _ = generated("llada22", number)
    denoiser = load("llada22", mask_token_id=159)
    found = traced(denoiser, prompt, llada22_options(LLADA22[number]), stop_ids={158})
    kinds = {(event.old is None, event.new is None) for event in found.events}
    assert len(kinds) == 3 or number > 0


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_drafts_are_traced_and_taken_back(threshold: float | None) -> None:
    denoiser, (prompt, _) = load("nemotron_labs_diffusion"), generated("nemotron_labs_diffusion", 1)
    options = DecodingOptions(n_masks=20, block_length=8, mode="linear_spec", confidence_threshold=threshold)
    found = traced(denoiser, prompt, options)
    assert any(event.new == denoiser.mask_token_id for event in found.events)
    assert {event.step for event in found.events} == set(range(1, found.passes + 1))
