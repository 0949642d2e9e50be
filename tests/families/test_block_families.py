"""Block diffusion families: logits against their reference code's, and what their checkpoints must say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mdlm_lm_eval.checkpoints import load_denoiser
from mdlm_lm_eval.declared import as_record
from mdlm_lm_eval.families import AttentionPattern, family_of, own_decoder
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from mdlm_lm_eval.provenance import in_words
from tests.conftest import data, generation, tiny_tokenizer
from tests.support import reference
from tests.support.reference import GOLDEN, assert_close, facts_of, padded, tensors_of

MASK = 159
FOLDERS = {
    "llada2": "llada2",
    "llada21": "llada21",
    "sdar": "sdar",
    "a2d_bd3lm": "a2d-qwen3",
    "fast_dllm_v2": "fast_dllm_v2",
}


def load(folder: str | Path, **arguments: Any) -> Denoiser:
    return reference.load(folder, mask_token_id=MASK, **arguments)


def copy_of(folder: str, path: Path, **changes: object) -> Path:
    """A copy of a golden checkpoint with other settings in its config.json; None takes one away."""
    shutil.copytree(GOLDEN / folder, path)
    settings = json.loads((path / "config.json").read_text()) | changes
    kept = {name: value for name, value in settings.items() if name not in changes or changes[name] is not None}
    (path / "config.json").write_text(json.dumps(kept))
    return path


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits_match_the_reference(folder: str, padding: str) -> None:
    tensors, settings = tensors_of(folder), facts_of(folder)
    ids = tensors["logits.input_ids"]  # [3, T]
    cases = [(length, [ids.shape[1]] * 3, "logits") for length in settings["logits_block_lengths"]]
    if padding != "none":
        cases = [(settings["ragged_block_length"], tensors["ragged.lengths"].tolist(), "ragged")]
    for block_length, lengths, name in cases:
        denoiser = load(folder, block_length=block_length)
        denoiser.shift = False  # as the reference's are
        canvases = padded([row[:n] for row, n in zip(ids, lengths, strict=True)], padding)
        found = denoiser.logits(*canvases, prompt_lengths=torch.zeros(3, dtype=torch.long))
        outputs = tensors[f"{name}.block{block_length}.output"]
        assert_close(found, torch.cat([row[:n] for row, n in zip(outputs, lengths, strict=True)]))


@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2"])
def test_an_implementation_that_takes_no_mask_is_refused(implementation: str) -> None:
    with pytest.raises(OptionError, match=f"attn_implementation={implementation} must be sdpa or eager"):
        load("sdar", attn_implementation=implementation)


@pytest.mark.parametrize(("folder", "pattern", "shift", "edits"), data("cases.json")["block families"])
def test_what_a_denoiser_knows(folder: str, pattern: list[Any], shift: bool, edits: bool) -> None:
    denoiser = load(folder)
    assert family_of(denoiser.model.config).name == FOLDERS[folder]
    assert (denoiser.attention, denoiser.shift, denoiser.edits) == (AttentionPattern(*pattern), shift, edits)
    assert load(folder, block_length=16).attention.block_length == 16


@pytest.mark.parametrize(("name", "family"), data("cases.json")["names of LLaDA2"])
def test_a_name_says_which_llada2(name: str, family: str, tmp_path: Path) -> None:
    """Both have one config; 2.0's decoding of 2.1 would never edit."""
    folder = copy_of("llada2", tmp_path / name, diffusion_family=None)
    lm = MDLM(str(folder), tokenizer=tiny_tokenizer(160), mask_token_id=MASK, device="cpu")
    assert family_of(lm.model.config).name == family
    assert as_record(lm.settings.decoding)["editing_threshold"] == (0.9 if family == "llada21" else None)
    assert lm.settings.decoding.schedule == ("llada2" if family == "llada2" else "linear")


@pytest.mark.parametrize(
    ("folder", "name", "families"),
    [
        *(("llada2", name, "llada2 or llada21") for name in ("model", "llada2-16b-sft", "llada-2-1k", "LLaDA2.10")),
        ("a2d_bd3lm", "model", "a2d-qwen3 or a2d-qwen3-mdlm"),
    ],
)
def test_a_name_that_says_neither_needs_a_word(folder: str, name: str, families: str, tmp_path: Path) -> None:
    path, said = copy_of(folder, tmp_path / name, diffusion_family=None), families.rpartition(" ")[2]
    with pytest.raises(OptionError, match=f"of {families}; say which with diffusion_family="):
        load(path)
    load(path, diffusion_family=said).model.save_pretrained(tmp_path / "saved")
    assert family_of(load(tmp_path / "saved").model.config).name == said


def test_the_block_length_stands_in_the_name_and_survives_saving(tmp_path: Path) -> None:
    assert load(copy_of("sdar", tmp_path / "SDAR-1.7B-Chat", block_size=None)).attention.block_length == 4
    denoiser = load(copy_of("sdar", tmp_path / "SDAR-1.7B-Chat-b8"))
    assert denoiser.attention.block_length == 8
    denoiser.model.save_pretrained(tmp_path / "merged")
    saved = load(tmp_path / "merged")
    assert (saved.attention.block_length, family_of(saved.model.config).name) == (8, "sdar")


@pytest.mark.parametrize(("path", "in_config", "length", "source"), data("cases.json")["block lengths"])
def test_a_block_length_comes_from_the_name_then_the_config_and_its_source_is_said(
    path: str, in_config: int | None, length: int, source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_of("sdar", tmp_path / path, block_size=in_config)
    settings = {"tokenizer": tiny_tokenizer(160), "mask_token_id": MASK, "device": "cpu"}
    lm = MDLM(str(folder), **settings)
    facts = lm.get_model_info()["mdlm"]
    assert (lm.denoiser.attention.block_length, facts["block_length_from"]) == (length, source)
    assert (f"block length by {source}" in in_words(facts, False)["settings"]) == (source != "config.json")
    assert facts["pretrained"] == ("JetLM/" + Path(path).parts[0].split("--")[2] if "--" in path else Path(path).name)
    warned = [record.getMessage() for record in caplog.records if "block_length=" in record.getMessage()]
    is_doubtful = "config.json, " in source or "default" in source
    assert [f"blocks of {length} tokens by {source};" in each for each in warned] == [True] * is_doubtful
    lm.use_options({"pretrained": str(folder), "block_length": 8})
    assert lm.get_model_info()["mdlm"]["block_length_from"] == "model_args"


def test_a_decoder_of_its_own_is_known_in_the_hubs_cache() -> None:
    cached = "/home/me/.cache/huggingface/hub/models--Zigeng--DMax-LLaDA/snapshots/0a1b2c"
    assert own_decoder(cached) == own_decoder("Zigeng/DMax-LLaDA")
    assert own_decoder(cached) is not None


def test_a_network_that_reads_residuals_is_decoded_by_its_authors_code_alone(tmp_path: Path) -> None:
    """RCD; its siblings without residuals (SeqD) are plain SDARs."""
    settings = {"tokenizer": tiny_tokenizer(160), "mask_token_id": MASK, "device": "cpu"}
    plain = MDLM(str(copy_of("sdar", tmp_path / "SeqD-SDAR-4B-b32-Thinking")), **settings)
    assert (plain.family.name, plain.denoiser.attention.block_length) == ("sdar", 32)
    folder = str(copy_of("sdar", tmp_path / "RCD-SDAR-4B-b32"))
    for refused in (lambda: MDLM(folder, **settings), lambda: load_denoiser(folder, mask_token_id=MASK)):
        with pytest.raises(OptionError, match=r"which feeds residuals of the pass before back .* modeling=FILE.py"):
            refused()
    (tmp_path / "theirs.py").write_text("def generate(model, prompt, gen_length):\n    return prompt\n")
    assert MDLM(folder, sampler=f"{tmp_path}/theirs.py:generate", **settings).settings.decoding.guest


@pytest.mark.parametrize("folder", [*FOLDERS, "llada", "dream", "llada_moe"])
def test_a_saved_model_has_the_names_of_its_config(folder: str, tmp_path: Path) -> None:
    denoiser = load(folder)
    denoiser.model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert not any("query_key_value" in name for name in names)
    ids = tensors_of(folder)["logits.input_ids"]
    canvases, saved = padded([*ids], "left"), load(tmp_path)
    found, expected = (
        each.logits(*canvases, prompt_lengths=torch.zeros(3, dtype=torch.long)) for each in (saved, denoiser)
    )
    assert_close(found, expected)
    assert family_of(saved.model.config).name == family_of(denoiser.model.config).name
    assert (saved.attention, saved.shift) == (denoiser.attention, denoiser.shift)


@pytest.mark.parametrize(("name", "family"), data("cases.json")["names of A2D"])
def test_a2ds_names_tell_its_attention(name: str, family: str, tmp_path: Path) -> None:
    denoiser = load(copy_of("a2d_bd3lm", tmp_path / name))
    assert family_of(denoiser.model.config).name == family
    assert denoiser.attention.is_block_causal == (family == "a2d-qwen3")


def test_sdars_mixture_of_experts(tmp_path: Path) -> None:
    """A Qwen3-MoE under another name, as LLaDA-MoE's native form is."""
    native = load("llada_moe")
    native.model.save_pretrained(tmp_path)
    settings = native.model.config.to_dict() | {"model_type": "sdar_moe", "norm_topk_prob": True}
    (tmp_path / "config.json").write_text(json.dumps(settings | {"diffusion_family": None}))
    denoiser = load(tmp_path)
    assert (denoiser.attention.block_length, denoiser.model.config.norm_topk_prob) == (4, True)
    for name, weight in native.model.state_dict().items():
        torch.testing.assert_close(denoiser.model.state_dict()[name], weight, atol=0, rtol=0)


def test_llada2s_weights_cannot_be_split_over_devices_while_they_are_fused() -> None:
    with pytest.raises(OptionError, match="tp_plan does not work with the family llada2"):
        load("llada2", tp_plan="auto")


@pytest.mark.parametrize("folder", ["llada2", "sdar", "a2d_bd3lm", "fast_dllm_v2"])
@pytest.mark.parametrize("block_length", [8, 16, 32])
def test_a_sweep_over_block_lengths_compares_nothing_else(folder: str, block_length: int) -> None:
    """One token a pass by default, whatever the block's length, where no threshold lets a pass fill more."""
    options = {"block_length": block_length, "n_masks": 31, "confidence_threshold": None}  # and "!"
    lm = MDLM(str(GOLDEN / folder), tokenizer=tiny_tokenizer(160), mask_token_id=MASK, early_exit=False, **options)
    lm.generate_until([generation("!", until=[])], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert facts["steps"] == [31, 31] == facts["masks"]
