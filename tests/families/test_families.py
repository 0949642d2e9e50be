"""Published checkpoints: configs, weights, tokenizers, blocks, what is refused; what families and docs say they are."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MistralConfig, PretrainedConfig

from mdlm_lm_eval.arguments import check_family
from mdlm_lm_eval.checkpoints import (
    attention_of,
    check_options,
    load_config,
    load_denoiser,
    load_tokenizer,
    resolve_mask_token_id,
)
from mdlm_lm_eval.declared import as_record
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.families import Family, family_of, own_decoder
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.provenance import in_words
from mdlm_lm_eval.registry import FAMILIES, register
from tests.conftest import data, edit_json, generation, random_llama, refused, tiny_model, tiny_tokenizer
from tests.support.reference import GOLDEN, assert_close, facts_of, load, padded, tensors_of


@pytest.mark.parametrize(("family", "model_type", "mask_token_id"), data("cases.json")["mask tokens"])
def test_a_config_without_mask_token_has_that_of_the_published_code(
    family: str, model_type: str, mask_token_id: int, tmp_path: Path
) -> None:
    """Another one would change every score and raise nothing."""
    published = json.loads((GOLDEN / family / "config.json").read_text()) | {"model_type": model_type}
    published |= {"vocab_size": 160_000} | ({"embedding_size": 160_000} if family == "llada" else {})
    published.pop("mask_token_id", None)
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert load_config(str(tmp_path)).mask_token_id == mask_token_id


@pytest.mark.parametrize(("family", "setting", "named"), refused("families"))
def test_a_setting_without_equivalent_is_refused_before_weights_are_read(
    family: str, setting: dict[str, object], named: str, tmp_path: Path
) -> None:
    shutil.copy(GOLDEN / family / "config.json", tmp_path)
    edit_json(tmp_path / "config.json", **setting, diffusion_family="a2d-qwen3" if family == "a2d_bd3lm" else family)
    with pytest.raises(OptionError, match=named):
        load_denoiser(str(tmp_path))


@pytest.mark.parametrize("family", ["llada", "llada_moe", "llada2"])
@pytest.mark.parametrize("change", ["missing", "unexpected", "of another shape"])
def test_weights_that_do_not_fit_are_refused_by_name(family: str, change: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / family, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    published, native = {
        "llada": ("transformer.blocks.1.attn_out", "layers.1.self_attn.o_proj"),
        "llada_moe": ("layers.1.self_attn.o_proj", "layers.1.self_attn.o_proj"),
        "llada2": ("layers.1.attention.dense", "layers.1.self_attn.o_proj"),
    }[family]
    weight = weights.pop(f"model.{published}.weight")
    weights |= {
        "missing": {},
        "unexpected": {f"model.{published}.weight": weight, f"model.{published}.bias": weight[0].clone()},
        "of another shape": {f"model.{published}.weight": torch.cat([weight, weight])},
    }[change]
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    hint = ".*leave them out by ignore_weights=REGEX" if change == "unexpected" else ""
    with pytest.raises(OptionError, match=f"{change}.*({published}|{native}){hint}"):
        load_denoiser(str(tmp_path / "model"), mask_token_id=159, ignore_weights=r".*\.nosuch")
    if change == "unexpected":
        load_denoiser(str(tmp_path / "model"), mask_token_id=159, ignore_weights=r".*\.bias")


@pytest.mark.parametrize("family", ["llada_moe", "llada2"])
def test_a_missing_expert_is_refused(family: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / family, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    del weights["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(RuntimeError, match="conversion of the weights"):
        load_denoiser(str(tmp_path / "model"), mask_token_id=159)


@pytest.mark.parametrize("family", ["llada_moe", "llada2"])
def test_experts_run_in_one_kernel_and_give_the_same_logits(family: str) -> None:
    ids = tensors_of(family)["logits.input_ids"]

    def logits(**arguments: Any) -> torch.Tensor:
        denoiser = load(family, mask_token_id=159, **arguments)
        implementation = denoiser.model.get_experts_implementation()[""]
        assert implementation == arguments["experts_implementation"] if arguments else implementation != "eager"
        return denoiser.logits(ids, None, torch.arange(ids.numel()))

    loop = logits(experts_implementation="eager")
    for found in (logits(), logits(experts_implementation="grouped_mm")):
        assert_close(found, loop)


def test_bidirectional_llama_sees_the_future_and_a_causal_one_is_refused(tmp_path: Path) -> None:
    random_llama(40, mask_token_id=39).save_pretrained(tmp_path / "diffusion")
    denoiser = load_denoiser(str(tmp_path / "diffusion"))
    assert denoiser.mask_token_id == 39
    canvases = torch.tensor([[39, 1, 2], [39, 1, 3]])
    logits = denoiser.logits(canvases, torch.ones_like(canvases), torch.tensor([0, 3]))
    assert not torch.allclose(logits[0, :39], logits[1, :39])
    random_llama(40, mask_token_id=39, is_causal=None).save_pretrained(tmp_path / "causal")
    with pytest.raises(OptionError, match="is_causal"):
        load_denoiser(str(tmp_path / "causal"))


@pytest.mark.parametrize("n_named", [160, 159])
def test_llada_tokenizer_learns_its_mask_token_where_the_id_has_a_name(tmp_path: Path, n_named: int) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(n_named)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w158"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = load_config(str(GOLDEN / "llada"))
    loaded = load_tokenizer(str(tmp_path), config=config)
    assert loaded.mask_token_id == (159 if n_named == 160 else None)
    assert resolve_mask_token_id(config, loaded, None) == 159
    assert loaded("w3 w4")["input_ids"] == [3, 4]
    assert loaded.pad_token_id == 158


def test_a_sliding_window_is_refused_where_masks_say_who_sees_what(tmp_path: Path) -> None:
    def loaded(**settings: object) -> PretrainedConfig:
        MistralConfig(max_position_embeddings=64, is_causal=False, **settings).save_pretrained(tmp_path)
        return load_config(str(tmp_path))

    cached = DecodingOptions(cache="dual", block_length=4)
    check_options(loaded(sliding_window=8), DecodingOptions(block_length=4))
    check_options(loaded(sliding_window=None), cached)
    check_options(loaded(sliding_window=64), cached)
    with pytest.raises(OptionError, match=r"^cache=dual does not work with the checkpoint's sliding_window=8; allowed"):
        check_options(loaded(sliding_window=8), cached)
    assert attention_of(loaded(sliding_window=None, block_length=4), None).block_length == 4
    with pytest.raises(OptionError, match=r"^block_length=4 does not work with the checkpoint's sliding_window=8"):
        attention_of(loaded(sliding_window=8, block_length=4), None)


DOC = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = {
    name: cells
    for line in re.findall(r"^\|`.*", DOC, re.MULTILINE)
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    for name in re.findall(r"`([^`]+)`", cells[0])
}


@pytest.mark.parametrize("name", ROWS)
def test_what_a_family_does_not_support_stands_in_its_row(name: str) -> None:
    family = FAMILIES.all()[name]
    no_likelihood, no_cache = (
        family.supports is not None and option not in family.supports for option in ("likelihood", "cache")
    )
    likelihood, cache = ROWS[name][4], ROWS[name][5]
    assert no_likelihood == (likelihood == "no")
    assert no_cache == (cache in ("no", "always on") or family.generate is not None)


def test_a_model_type_belongs_to_one_family() -> None:
    FAMILIES.all()  # those of the package are registered when they are first asked for
    with pytest.raises(ValueError, match="belongs to the family sdar"):
        register(name="acme", family=Family(name="acme", model_types=("sdar",)))


@pytest.mark.parametrize(("family", "options", "named"), data("cases.json")["samplers of families"])
def test_samplers_that_a_family_takes(family: str, options: dict[str, Any], named: str | None) -> None:
    config = tiny_model().config
    config.diffusion_family = family
    if named is None:
        check_family(way_of(DecodingOptions(**options)), config, in_slots=None)
        return
    with pytest.raises(OptionError, match=f"^{named} does not work with the family {family}:"):
        check_family(way_of(DecodingOptions(**options)), config, in_slots=None)


# Block diffusion


MASK = 159
FOLDERS = {
    "llada2": "llada2",
    "llada21": "llada21",
    "sdar": "sdar",
    "a2d_bd3lm": "a2d-qwen3",
    "fast_dllm_v2": "fast_dllm_v2",
}


def of_blocks(folder: str | Path, **arguments: Any) -> Denoiser:
    return load(folder, mask_token_id=MASK, **arguments)


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
        denoiser = of_blocks(folder, block_length=block_length)
        denoiser.shift = False  # as the reference's are
        canvases = padded([row[:n] for row, n in zip(ids, lengths, strict=True)], padding)
        found = denoiser.logits(*canvases, prompt_lengths=torch.zeros(3, dtype=torch.long))
        outputs = tensors[f"{name}.block{block_length}.output"]
        assert_close(found, torch.cat([row[:n] for row, n in zip(outputs, lengths, strict=True)]))


@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2"])
def test_an_implementation_that_takes_no_mask_is_refused(implementation: str) -> None:
    with pytest.raises(OptionError, match=f"attn_implementation={implementation} must be sdpa or eager"):
        of_blocks("sdar", attn_implementation=implementation)


@pytest.mark.parametrize(("folder", "pattern", "shift", "edits"), data("cases.json")["block families"])
def test_what_a_denoiser_knows(folder: str, pattern: list[Any], shift: bool, edits: bool) -> None:
    denoiser = of_blocks(folder)
    assert family_of(denoiser.model.config).name == FOLDERS[folder]
    assert (denoiser.attention, denoiser.shift, denoiser.edits) == (AttentionPattern(*pattern), shift, edits)
    assert of_blocks(folder, block_length=16).attention.block_length == 16


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
        of_blocks(path)
    of_blocks(path, diffusion_family=said).model.save_pretrained(tmp_path / "saved")
    assert family_of(of_blocks(tmp_path / "saved").model.config).name == said


def test_the_block_length_stands_in_the_name_and_survives_saving(tmp_path: Path) -> None:
    assert of_blocks(copy_of("sdar", tmp_path / "SDAR-1.7B-Chat", block_size=None)).attention.block_length == 4
    denoiser = of_blocks(copy_of("sdar", tmp_path / "SDAR-1.7B-Chat-b8"))
    assert denoiser.attention.block_length == 8
    denoiser.model.save_pretrained(tmp_path / "merged")
    saved = of_blocks(tmp_path / "merged")
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
    assert (f"block length by {source}" in in_words(facts)["settings"]) == (source != "config.json")
    assert facts["pretrained"] == ("JetLM/" + Path(path).parts[0].split("--")[2] if "--" in path else Path(path).name)
    warned = [record.getMessage() for record in caplog.records if "block_length=" in record.getMessage()]
    is_doubtful = "config.json, " in source or "default" in source
    assert [f"blocks of {length} tokens by {source};" in each for each in warned] == [True] * is_doubtful
    lm.use_options({"pretrained": str(folder), "block_length": 8})
    assert lm.get_model_info()["mdlm"]["block_length_from"] == "model_args"


def test_a_decoder_of_its_own_is_known_in_the_hubs_cache() -> None:
    cached = "/home/me/.cache/huggingface/hub/models--Zigeng--DMax-LLaDA/snapshots/0a1b2c"
    assert own_decoder(cached) == own_decoder("Zigeng/DMax-LLaDA") is not None


def test_a_network_that_reads_residuals_is_decoded_by_its_authors_code_alone(tmp_path: Path) -> None:
    """RCD; its siblings without residuals (SeqD) are plain SDARs."""
    settings = {"tokenizer": tiny_tokenizer(160), "mask_token_id": MASK, "device": "cpu"}
    plain = MDLM(str(copy_of("sdar", tmp_path / "SeqD-SDAR-4B-b32-Thinking")), **settings)
    assert (plain.family.name, plain.denoiser.attention.block_length) == ("sdar", 32)
    folder = str(copy_of("sdar", tmp_path / "RCD-SDAR-4B-b32"))
    for build in (lambda: MDLM(folder, **settings), lambda: load_denoiser(folder, mask_token_id=MASK)):
        with pytest.raises(OptionError, match=r"which feeds residuals of the pass before back .* modeling=FILE.py"):
            build()
    (tmp_path / "theirs.py").write_text("def generate(model, prompt, gen_length):\n    return prompt\n")
    assert MDLM(folder, sampler=f"{tmp_path}/theirs.py:generate", **settings).settings.decoding.guest


@pytest.mark.parametrize("folder", [*FOLDERS, "llada", "dream", "llada_moe"])
def test_a_saved_model_has_the_names_of_its_config(folder: str, tmp_path: Path) -> None:
    denoiser = of_blocks(folder)
    denoiser.model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert not any("query_key_value" in name for name in names)
    ids = tensors_of(folder)["logits.input_ids"]
    canvases, saved = padded([*ids], "left"), of_blocks(tmp_path)
    found, expected = (
        each.logits(*canvases, prompt_lengths=torch.zeros(3, dtype=torch.long)) for each in (saved, denoiser)
    )
    assert_close(found, expected)
    assert family_of(saved.model.config).name == family_of(denoiser.model.config).name
    assert (saved.attention, saved.shift) == (denoiser.attention, denoiser.shift)


@pytest.mark.parametrize(("name", "family"), data("cases.json")["names of A2D"])
def test_a2ds_names_tell_its_attention(name: str, family: str, tmp_path: Path) -> None:
    denoiser = of_blocks(copy_of("a2d_bd3lm", tmp_path / name))
    assert family_of(denoiser.model.config).name == family
    assert denoiser.attention.is_block_causal == (family == "a2d-qwen3")


def test_sdars_mixture_of_experts(tmp_path: Path) -> None:
    """A Qwen3-MoE under another name, as LLaDA-MoE's native form is."""
    native = of_blocks("llada_moe")
    native.model.save_pretrained(tmp_path)
    settings = native.model.config.to_dict() | {"model_type": "sdar_moe", "norm_topk_prob": True}
    (tmp_path / "config.json").write_text(json.dumps(settings | {"diffusion_family": None}))
    denoiser = of_blocks(tmp_path)
    assert (denoiser.attention.block_length, denoiser.model.config.norm_topk_prob) == (4, True)
    for name, weight in native.model.state_dict().items():
        torch.testing.assert_close(denoiser.model.state_dict()[name], weight, atol=0, rtol=0)


def test_llada2s_weights_cannot_be_split_over_devices_while_they_are_fused() -> None:
    with pytest.raises(OptionError, match="tp_plan does not work with the family llada2"):
        of_blocks("llada2", tp_plan="auto")


@pytest.mark.parametrize("folder", ["llada2", "sdar", "a2d_bd3lm", "fast_dllm_v2"])
@pytest.mark.parametrize("block_length", [8, 16, 32])
def test_a_sweep_over_block_lengths_compares_nothing_else(folder: str, block_length: int) -> None:
    """One token a pass by default, whatever the block's length, where no threshold lets a pass fill more."""
    options = {"block_length": block_length, "n_masks": 31, "confidence_threshold": None}  # and "!"
    lm = MDLM(str(GOLDEN / folder), tokenizer=tiny_tokenizer(160), mask_token_id=MASK, early_exit=False, **options)
    lm.generate_until([generation("!", until=[])], disable_tqdm=True)
    facts = lm.get_model_info()["mdlm"]["tasks"]["task"]
    assert facts["steps"] == [31, 31] == facts["masks"]
