"""Published checkpoints: configs, weights, tokenizers, what is refused; what families and docs say of themselves."""

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
from mdlm_lm_eval.decoding.way import way_of
from mdlm_lm_eval.families import Family
from mdlm_lm_eval.options import DecodingOptions, OptionError
from mdlm_lm_eval.registry import FAMILIES, register
from tests.conftest import data, edit_json, random_llama, refused, tiny_model
from tests.support.reference import GOLDEN, assert_close, load, tensors_of


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
