"""Configs, weights and tokenizers of published checkpoints, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, MistralConfig, PretrainedConfig

from mdlm_lm_eval.families import (
    all_families,
    attention_of,
    check_options,
    family_of,
    load_config,
    load_tokenizer,
    resolve_mask_token_id,
)
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    folder = tmp_path / "llada"
    shutil.copytree(GOLDEN / "llada", folder)
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def logits_of(folder: Path) -> torch.Tensor:
    input_ids = load_file(GOLDEN / "llada" / "golden.safetensors")["logits.input_ids"]
    with torch.no_grad():
        return load_denoiser(str(folder), dtype="float32").model(input_ids).logits


@pytest.mark.parametrize(("family", "shift"), [("llada", False), ("dream", True), ("llada_moe", False)])
def test_family_and_shift_survive_saving_the_config(family: str, shift: bool, tmp_path: Path) -> None:
    load_config(str(GOLDEN / family)).save_pretrained(tmp_path)
    config = load_config(str(tmp_path))
    assert (family_of(config).name, family_of(config).shift(config), config.is_causal) == (family, shift, False)
    assert (config.mask_token_id, config.eos_token_id, config.pad_token_id) == (159, 158, 158)


@pytest.mark.parametrize(
    ("model_type", "mask_token_id"),
    [
        ("llada", 126336),
        ("lladamoe", 156895),
        ("llada2_moe", 156895),
        ("sdar", 151669),
        ("sdar_moe", 151669),
        ("Fast_dLLM_Qwen", 151665),
    ],
)
def test_where_a_config_names_no_mask_token_it_is_the_one_of_the_published_code(
    model_type: str, mask_token_id: int, tmp_path: Path
) -> None:
    """Another one would change every score and raise nothing."""
    folder = {"lladamoe": "llada_moe", "llada2_moe": "llada2", "Fast_dLLM_Qwen": "fast_dllm_v2"}.get(model_type)
    published = json.loads((GOLDEN / (folder or model_type.removesuffix("_moe")) / "config.json").read_text())
    if model_type == "sdar_moe":
        published |= {"norm_topk_prob": True}
    published |= {"model_type": model_type, "vocab_size": 160_000, "embedding_size": 160_000}
    published.pop("mask_token_id", None)
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert load_config(str(tmp_path)).mask_token_id == mask_token_id


def test_what_the_authors_of_a_family_publish_as_their_decoding() -> None:
    families = all_families()
    assert families["llada21"].decoding_defaults == {
        "confidence_threshold": 0.95,
        "editing_threshold": 0.9,
        "max_post_steps": 16,
    }
    assert families["fast_dllm_v2"].decoding_defaults == {"small_block_length": 8, "confidence_threshold": 0.9}
    for base in ("qwen3", "qwen2", "llama"):
        assert families[f"a2d-{base}"].decoding_defaults == {"schedule": "bd3lm"}
        assert families[f"a2d-{base}-mdlm"].decoding_defaults == {}
    ends = {name: families[name].end_of_turn for name in ("llada", "dream", "llada2", "sdar", "a2d-llama")}
    assert ends == {
        "llada": ("<|eot_id|>",),
        "dream": ("<|im_end|>",),
        "llada2": ("<|role_end|>",),
        "sdar": ("<|im_end|>",),
        "a2d-llama": ("<|eot_id|>",),
    }


def test_sharded_weights(llada: Path) -> None:
    expected = logits_of(llada)
    weights = load_file(llada / "model.safetensors")
    (llada / "model.safetensors").unlink()
    names = sorted(weights)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in names if files[name] == file}, llada / file, {"format": "pt"})
    (llada / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    torch.testing.assert_close(logits_of(llada), expected, atol=0, rtol=0)


def test_a_saved_llada_has_the_names_of_its_config(llada: Path, tmp_path: Path) -> None:
    load_denoiser(str(llada)).model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "llama"
    assert "model.layers.0.mlp.gate_proj.weight" in load_file(tmp_path / "saved" / "model.safetensors")
    torch.testing.assert_close(logits_of(tmp_path / "saved"), logits_of(llada), atol=0, rtol=0)


def test_dtype() -> None:
    assert load_denoiser(str(GOLDEN / "llada"), dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("setting", [{"alibi": True}, {"layer_norm_type": "default"}, {"rope": False}])
def test_a_setting_without_equivalent_is_refused(llada: Path, setting: dict[str, object]) -> None:
    edit_config(llada, **setting)
    with pytest.raises(OptionError, match=next(iter(setting))):
        load_config(str(llada))


def test_embedding_rows_count_not_the_tokenizers_tokens(llada: Path) -> None:
    edit_config(llada, vocab_size=150)
    assert load_denoiser(str(llada)).vocab_size == 160


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_misfit_weights_are_named(llada: Path, change: str) -> None:
    weights = load_file(llada / "model.safetensors")
    if change == "missing":
        del weights["model.transformer.blocks.1.ff_out.weight"]
    else:
        weights["model.transformer.blocks.1.q_norm.weight"] = torch.ones(32)
    save_file(weights, llada / "model.safetensors", {"format": "pt"})
    name = {"missing": r"layers\.1\.mlp\.down_proj", "unexpected": r"1\.q_norm"}[change]
    with pytest.raises(OptionError, match=f"{change}.*{name}"):
        load_denoiser(str(llada))


@pytest.mark.parametrize("name", ["mlp.experts.3.up_proj", "mlp.gate", "self_attn.q_norm"])
def test_missing_weights_of_a_mixture_of_experts_are_named(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / "llada_moe", tmp_path / "moe")
    weights = load_file(tmp_path / "moe" / "model.safetensors")
    del weights[f"model.layers.0.{name}.weight"]
    save_file(weights, tmp_path / "moe" / "model.safetensors", {"format": "pt"})
    with pytest.raises(OptionError, match=rf"missing: model\.layers\.0\.{name}"):
        load_denoiser(str(tmp_path / "moe"))


def test_weights_of_another_shape_are_refused(llada: Path) -> None:
    edit_config(llada, mlp_hidden_size=96)
    with pytest.raises(OptionError, match="another shape"):
        load_denoiser(str(llada))


def test_truncated_weights_are_refused(llada: Path) -> None:
    path = llada / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(OptionError, match="cannot be read"):
        load_denoiser(str(llada))


def test_mask_token_outside_the_vocabulary_is_refused(llada: Path) -> None:
    edit_config(llada, mask_token_id=160)
    with pytest.raises(OptionError, match="mask_token_id=160 is no token"):
        load_denoiser(str(llada))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no config\.json"):
        load_config(str(tmp_path))


def test_unknown_family_is_refused(llada: Path) -> None:
    edit_config(llada, model_type="novel")
    with pytest.raises(OptionError, match="trust_remote_code"):
        load_config(str(llada))


def tiny_llama(**settings: object) -> LlamaForCausalLM:
    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, mask_token_id=39, **settings))


def test_bidirectional_llama_sees_the_future_and_a_causal_one_is_refused(tmp_path: Path) -> None:
    tiny_llama(is_causal=False).save_pretrained(tmp_path / "diffusion")
    denoiser = load_denoiser(str(tmp_path / "diffusion"))
    assert denoiser.mask_token_id == 39
    canvases = torch.tensor([[39, 1, 2], [39, 1, 3]])
    logits = denoiser.logits(canvases, torch.ones_like(canvases), torch.tensor([0, 3]))
    assert not torch.allclose(logits[0, :39], logits[1, :39])
    tiny_llama().save_pretrained(tmp_path / "causal")
    with pytest.raises(OptionError, match="is_causal"):
        load_denoiser(str(tmp_path / "causal"))


def test_masked_lm(tmp_path: Path) -> None:
    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    reference = BertForMaskedLM(BertConfig(**shape, num_attention_heads=2)).eval()
    reference.save_pretrained(tmp_path)
    denoiser = load_denoiser(str(tmp_path), mask_token_id=39)
    assert family_of(denoiser.model.config).name == "masked_lm"
    canvas = torch.tensor([[1, 39, 2]])
    with torch.no_grad():
        expected = reference(canvas).logits[0]
    logits = denoiser.logits(canvas, torch.ones_like(canvas), torch.arange(3))
    torch.testing.assert_close(logits[:, :39], expected[:, :39])


def test_remote_code_needs_shift_logits() -> None:
    config = load_config(str(GOLDEN / "llada"))
    config.diffusion_family = "remote"
    with pytest.raises(OptionError, match="shift_logits"):
        family_of(config).shift(config)


def test_dream_tokenizer_loads_without_its_remote_class(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "ab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    names = ["<|endoftext|>", "<|im_end|>", "<|mask|>"]
    added = {str(257 + i): {"content": name, "special": True} for i, name in enumerate(names)}
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": added,
        "bos_token": names[0],
        "eos_token": names[0],
        "pad_token": names[0],
        "mask_token": names[2],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = load_config(str(GOLDEN / "dream"))
    with_bos = load_tokenizer(str(tmp_path), config=config, add_bos_token=True)
    assert with_bos("ab")["input_ids"] == [257, 256]
    tokenizer = load_tokenizer(str(tmp_path), config=config)
    assert tokenizer("abc<|mask|>")["input_ids"] == [256, vocabulary["c"], 259]
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (259, 257)
    assert tokenizer.decode(tokenizer("ab é 字")["input_ids"]) == "ab é 字"


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
