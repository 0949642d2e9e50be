"""A checkpoint or adapter whose files are wrong ends the run in one sentence that names it and says what is wrong.

A new bad checkpoint is a row of one of these tables.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mdlm_lm_eval.default_model import default_model_path
from mdlm_lm_eval.families import files_digest
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.options import OptionError

# What stands in config.json in place of the right value.
CONFIG_VALUES = [
    ("output_hidden_states", "x", "output_hidden_states must be true or false, not x"),
    ("vocab_size", "abc", "'vocab_size' expected int, got str"),
    ("vocab_size", None, "'vocab_size' expected int, got NoneType"),
    ("vocab_size", 10**13, "vocab_size must be a whole number from 1 up to 2147483647, not 10000000000000"),
    ("vocab_size", -5, "vocab_size must be a whole number from 1 up to 2147483647, not -5"),
    ("hidden_size", "x", "'hidden_size' expected int, got str"),
    ("hidden_size", 0, "hidden_size must be a whole number from 1 up to 2147483647, not 0"),
    ("num_attention_heads", 0, "num_attention_heads must be a whole number from 1 up to 2147483647, not 0"),
    ("num_attention_heads", 7, "not a multiple of the number of attention heads (7)"),
    ("num_hidden_layers", 10**6, "num_hidden_layers must be a whole number from 1 up to 10000, not 1000000"),
    ("text_config", 5, "text_config must be settings, not 5"),
    ("num_hidden_layers", "four", "'num_hidden_layers' expected int, got str"),
    ("max_position_embeddings", "x", "'max_position_embeddings' expected int, got str"),
    ("max_position_embeddings", None, "'max_position_embeddings' expected int, got NoneType"),
    ("max_position_embeddings", -3, "max_position_embeddings must be a whole number from 1 up to 2147483647, not -3"),
    ("max_position_embeddings", 10**15, "max_position_embeddings must be a whole number from 1 up to 2147483647, not"),
    ("model_type", ["llama"], "model_type=['llama'] is not known"),
    ("model_type", 5, "model_type=5 is not known"),
    ("model_type", "foo", "model_type='foo' is not known"),
    ("hidden_act", "foo", "foo"),
    ("hidden_act", 5, "hidden_act"),
    ("rms_norm_eps", "x", "'rms_norm_eps' expected float, got str"),
    ("rope_parameters", 5, "'rope_parameters'"),
    ("rope_parameters", {"rope_type": "foo"}, "foo"),
    ("pad_token_id", 100_000, "pad_token_id must be an id below vocab_size="),
    ("pad_token_id", -100_000, "pad_token_id must be an id below vocab_size="),
    ("pad_token_id", "x", "pad_token_id"),
    ("eos_token_id", "x", "'eos_token_id'"),
    ("eos_token_id", [1, "a"], "'eos_token_id'"),
    ("mask_token_id", "x", "mask_token_id='x' is no token of the vocabulary"),
    ("mask_token_id", "5", "mask_token_id='5' is no token of the vocabulary"),
    ("mask_token_id", True, "mask_token_id=True is no token of the vocabulary"),
    ("mask_token_id", 10**6, "mask_token_id=1000000 is no token of the vocabulary"),
    ("dtype", "foo", "dtype in its config.json names no type of torch: foo"),
    ("dtype", 5, "dtype in its config.json names no type of torch: 5"),
    ("tie_word_embeddings", "x", "'tie_word_embeddings' expected bool, got str"),
    ("quantization_config", 5, "quantization_config"),
    ("quantization_config", {"quant_method": "foo"}, "foo"),
    ("diffusion_family", "foo", "diffusion_family='foo' in config.json must be one of"),
    ("diffusion_family", ["llada"], "diffusion_family=['llada'] in config.json must be one of"),
    ("is_causal", True, "is_causal"),
    ("shift_logits", "maybe", "shift_logits must be true or false, not maybe"),
    ("block_length", "abc", 'block_length in config.json must be a whole number from 1, not "abc"'),
    ("block_length", -3, "block_length in config.json must be a whole number from 1, not -3"),
]

# The whole of config.json.
CONFIG_FILES = ["5", "null", '"text"', "[" * 100_000, "[]", "{", "", "\x00\x01", '{"model_type": "llama"']

# Whole files beside it. A folder of None is one that is taken away.
FILES: list[tuple[dict[str, str | None], str]] = [
    ({"tokenizer_config.json": "[]"}, "tokenizer_config.json must hold names with a value each, not []"),
    ({"tokenizer_config.json": "5"}, "tokenizer_config.json must hold names with a value each, not 5"),
    ({"tokenizer_config.json": '{"tokenizer_class": 5}'}, "tokenizer_class in tokenizer_config.json must be a text or"),
    ({"tokenizer_config.json": '{"mask_token": 5}'}, "mask_token in tokenizer_config.json must be a text or "),
    ({"tokenizer_config.json": '{"added_tokens_decoder": 5}'}, "must be names with a value each or null, not 5"),
    ({"tokenizer_config.json": '{"model_max_length": "x"}'}, 'must be a number or null, not "x"'),
    ({"tokenizer_config.json": '{"extra_special_tokens": 5}'}, "must be a list or names with a value each or null"),
    ({"tokenizer_config.json": '{"tokenizer_class": "Foo"}'}, "prefix_token_id is not set"),
    ({"tokenizer_config.json": "[" * 100_000}, "tokenizer of"),
    ({"tokenizer.json": "{}"}, "tokenizer of"),
    ({"tokenizer.json": "[" * 100_000}, "tokenizer of"),
    ({"tokenizer.json": None, "tokenizer_config.json": None}, "tokenizer of"),
    ({"generation_config.json": "{"}, "generation_config.json is no whole JSON file"),
    ({"generation_config.json": "[]"}, "generation_config.json must hold names with a value each"),
    ({"generation_config.json": '{"eos_token_id": "x"}'}, "generation_config.json"),
    ({"model.safetensors": None}, "its weights cannot be read"),
    ({"model.safetensors": ""}, "its weights cannot be read"),
    ({"model.safetensors": "not weights at all"}, "its weights cannot be read"),
]

# `model.safetensors.index.json` of a checkpoint in shards.
INDEXES = [
    "5",
    "[]",
    "{",
    '{"weight_map": 5}',
    '{"weight_map": {}}',
    '{"weight_map": {"model.embed_tokens.weight": "shard.safetensors"}}',
    '{"metadata": {}, "weight_map": {"model.embed_tokens.weight": 5}}',
    '{"metadata": {}, "weight_map": {"model.embed_tokens.weight": "../other/model.safetensors"}}',
    '{"metadata": {}, "weight_map": {"model.embed_tokens.weight": "/etc/passwd"}}',
    '{"metadata": {}, "weight_map": {"model.embed_tokens.weight": "missing.safetensors"}}',
]

CANNOT, MISFIT = "the adapter cannot be read: ", "the adapter does not fit this model: "
ADAPTER_VALUES = [
    ("r", None, CANNOT + "r in adapter_config.json must be a whole number, not null"),
    ("r", "two", CANNOT + 'r in adapter_config.json must be a whole number, not "two"'),
    ("r", True, CANNOT + "r in adapter_config.json must be a whole number, not true"),
    ("r", 4.0, CANNOT + "r in adapter_config.json must be a whole number, not 4.0"),
    ("r", "4", CANNOT + 'r in adapter_config.json must be a whole number, not "4"'),
    ("r", 2.5, CANNOT + "r in adapter_config.json must be a whole number, not 2.5"),
    ("r", 0, "the adapter "),
    ("r", -1, "the adapter "),
    ("r", 10_000_000, MISFIT + "r=10000000 is larger than "),
    ("rank_pattern", {"q_proj": 10_000_000}, MISFIT + "r=10000000 is larger than "),
    ("rank_pattern", {"q_proj": "x"}, CANNOT + "rank_pattern in adapter_config.json must be names with a value each"),
    ("rank_pattern", 5, CANNOT + "rank_pattern in adapter_config.json must be names with a value each or null, not 5"),
    ("alpha_pattern", {"q_proj": "x"}, CANNOT + "alpha_pattern in adapter_config.json must be names with a value each"),
    ("lora_alpha", float("nan"), CANNOT + "lora_alpha in adapter_config.json must be a number, not "),
    ("lora_alpha", 0, CANNOT + "lora_alpha must be a finite number, and not 0"),
    ("lora_alpha", "x", CANNOT + 'lora_alpha in adapter_config.json must be a number, not "x"'),
    ("lora_alpha", None, CANNOT + "lora_alpha in adapter_config.json must be a number, not null"),
    ("lora_dropout", "x", CANNOT + 'lora_dropout in adapter_config.json must be a number, not "x"'),
    ("lora_dropout", 5, MISFIT),
    ("target_modules", "(", MISFIT),
    ("target_modules", 5, CANNOT + "target_modules in adapter_config.json must be a list or a text or null, not 5"),
    ("target_modules", ["nothing_of_this"], MISFIT),
    ("target_modules", None, MISFIT),
    ("modules_to_save", 5, CANNOT + "modules_to_save in adapter_config.json must be a list or null, not 5"),
    ("modules_to_save", ["nope"], MISFIT + "modules_to_save names nope, and no module is named so"),
    ("fan_in_fan_out", "x", CANNOT + 'fan_in_fan_out in adapter_config.json must be true or false, not "x"'),
    ("use_dora", "x", CANNOT + 'use_dora in adapter_config.json must be true or false, not "x"'),
    ("bias", "foo", CANNOT + 'bias in adapter_config.json must be one of none, all, lora_only, not "foo"'),
    ("peft_type", "PROMPT_TUNING", CANNOT + "PROMPT_TUNING adds tokens of its own"),
    ("peft_type", "FOO", CANNOT + "peft_type=FOO in adapter_config.json is not known to PEFT"),
    ("peft_type", 5, CANNOT + "peft_type=5 in adapter_config.json is not known to PEFT"),
]
ADAPTER_FILES = ["5", "null", "[]", "{", "", "[" * 100_000, "{}", '"text"']


class Evil:
    """Code that runs where a pickle is read without care."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return eval, ("__import__('builtins').__dict__.__setitem__('mdlm_was_here', True)",)


def refusal(**arguments: Any) -> str:
    """The sentence that loading ends with."""
    with pytest.raises(OptionError) as error:
        MDLM.create_from_arg_obj(arguments, {"device": "cpu", "batch_size": 1})
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 1500
    return sentence


@pytest.fixture
def broken(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, to be broken."""
    return shutil.copytree(checkpoint, tmp_path / "broken")


@pytest.fixture(scope="session")
def good_adapter(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter that fits the checkpoint."""
    folder = tmp_path_factory.mktemp("adapter")
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)
    return folder


@pytest.fixture
def adapter(good_adapter: Path, tmp_path: Path) -> Path:
    """A copy of it, to be broken."""
    return shutil.copytree(good_adapter, tmp_path / "adapter")


def set_in(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(("name", "value", "said"), CONFIG_VALUES)
def test_values_in_config_json(broken: Path, name: str, value: Any, said: str) -> None:
    set_in(broken / "config.json", **{name: value})
    sentence = refusal(pretrained=str(broken))
    assert said in sentence


@pytest.mark.parametrize("text", CONFIG_FILES)
def test_config_json(broken: Path, text: str) -> None:
    (broken / "config.json").write_text(text)
    assert refusal(pretrained=str(broken)).startswith(f"pretrained={broken}: cannot read its config.json")


@pytest.mark.parametrize(("files", "said"), FILES)
def test_files_of_a_checkpoint(broken: Path, files: dict[str, str | None], said: str) -> None:
    for name, text in files.items():
        (broken / name).unlink(missing_ok=True)
        if text is not None:
            (broken / name).write_text(text)
    assert said in refusal(pretrained=str(broken))


@pytest.mark.parametrize("index", INDEXES)
def test_indexes_of_shards(broken: Path, index: str) -> None:
    shutil.copytree(broken, broken.parent / "other")
    (broken / "model.safetensors").rename(broken / "shard.safetensors")
    (broken / "model.safetensors.index.json").write_text(index)
    assert refusal(pretrained=str(broken)).startswith(f"pretrained={broken}: ")


@pytest.mark.parametrize("what", [Evil(), {"weight": Evil()}, 5, [1]])
def test_pickled_weights_run_no_code(broken: Path, what: Any) -> None:
    (broken / "model.safetensors").unlink()
    torch.save(what, broken / "pytorch_model.bin")
    sentence = refusal(pretrained=str(broken))
    assert sentence.startswith(f"pretrained={broken}: ")
    assert "weights_only" not in sentence
    assert "mdlm_was_here" not in vars(__import__("builtins"))


def test_plain_pickles_run_no_code(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    (broken / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    assert refusal(pretrained=str(broken)).endswith("could run code; convert them to safetensors")
    assert "mdlm_was_here" not in vars(__import__("builtins"))


@pytest.mark.parametrize(("name", "value", "said"), ADAPTER_VALUES)
def test_values_in_an_adapters_config(checkpoint: Path, adapter: Path, name: str, value: Any, said: str) -> None:
    set_in(adapter / "adapter_config.json", **{name: value})
    assert refusal(pretrained=str(checkpoint), peft=str(adapter)).startswith(f"peft={adapter}: {said}")


@pytest.mark.parametrize("text", ADAPTER_FILES)
def test_config_of_an_adapter(checkpoint: Path, adapter: Path, text: str) -> None:
    (adapter / "adapter_config.json").write_text(text)
    assert refusal(pretrained=str(checkpoint), peft=str(adapter)).startswith(f"peft={adapter}: ")


@pytest.mark.parametrize("what", [Evil(), {"weight": Evil()}, 5])
def test_pickled_adapters_run_no_code(checkpoint: Path, adapter: Path, what: Any) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(what, adapter / "adapter_model.bin")
    sentence = refusal(pretrained=str(checkpoint), peft=str(adapter))
    assert sentence.startswith(f"peft={adapter}: ")
    assert "weights_only" not in sentence
    assert "mdlm_was_here" not in vars(__import__("builtins"))


def test_modules_that_an_adapter_says_are_saved_and_are_not(checkpoint: Path, adapter: Path) -> None:
    set_in(adapter / "adapter_config.json", modules_to_save=["lm_head"])
    assert refusal(pretrained=str(checkpoint), peft=str(adapter)).startswith(f"peft={adapter}: ")


def test_a_pipe_in_place_of_an_adapters_weights(checkpoint: Path, adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    os.mkfifo(adapter / "adapter_model.safetensors")
    assert refusal(pretrained=str(checkpoint), peft=str(adapter)).endswith("holds no adapter_model.safetensors")


def test_weights_that_are_not_finite(checkpoint: Path, adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({name: torch.full_like(weight, torch.nan) for name, weight in load_file(path).items()}, path)
    assert "not finite" in refusal(pretrained=str(checkpoint), peft=str(adapter))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("what", ["pipe", "folder", "dead link"])
def test_what_is_no_file_is_not_overlooked(broken: Path, name: str, what: str) -> None:
    (broken / name).unlink(missing_ok=True)
    {
        "pipe": lambda: os.mkfifo(broken / name),
        "folder": lambda: (broken / name).mkdir(),
        "dead link": lambda: (broken / name).symlink_to("nowhere"),
    }[what]()
    assert f"{name} " in refusal(pretrained=str(broken))


def test_only_files_are_weights(broken: Path) -> None:
    before = files_digest(str(broken))
    os.mkfifo(broken / "other.safetensors")
    (broken / "more.safetensors").mkdir()
    assert files_digest(str(broken)) == before


def test_an_adapter_around_a_tied_output_head(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(default_model_path())
    get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"])).save_pretrained(tmp_path)
    lm = MDLM(peft=str(tmp_path), device="cpu", batch_size=1)
    assert lm.model.get_output_embeddings().weight.data_ptr() == lm.model.get_input_embeddings().weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_weights_that_are_whole_numbers(broken: Path, dtype: torch.dtype) -> None:
    path = broken / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"model.norm.weight": weights["model.norm.weight"].to(dtype)}, path, {"format": "pt"})
    assert "weights must be floating-point numbers" in refusal(pretrained=str(broken))
