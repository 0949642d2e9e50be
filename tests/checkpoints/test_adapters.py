"""PEFT adapters on native module names, on LLaDA's own, and for another model."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from mdlm_lm_eval import load_denoiser
from mdlm_lm_eval.checkpoints.adapters import load_adapter, without_adapter
from mdlm_lm_eval.options import OptionError
from tests.conftest import data, edit_json, random_llama
from tests.support.reference import GOLDEN, assert_close, load

MODULES = ["q_proj", "o_proj", "gate_proj", "down_proj", "lm_head"]
INPUT_IDS = torch.arange(12).view(1, 12)
REMOTE_NAMES = data("cases.json")["names of LLaDA's remote code"]


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(INPUT_IDS).logits


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A LoRA adapter with random weights, on Llama's names, and what the model says with it."""
    model = load("llada").model
    patterns = {"rank_pattern": {"gate_proj": 3}, "alpha_pattern": {"gate_proj": 5}}
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=MODULES, init_lora_weights=False, **patterns)
    adapted = get_peft_model(model, config).eval()
    adapted.save_pretrained(tmp_path)
    return tmp_path, logits_of(adapted)


def test_native_names(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, expected = adapter
    with warnings.catch_warnings(action="error", category=FutureWarning):
        denoiser = load("llada", peft=str(folder))
    assert_close(logits_of(denoiser.model), expected)
    assert denoiser.vocab_size == 160


@pytest.mark.parametrize("save_embedding_layers", [False, True])
def test_modules_trained_whole(tmp_path: Path, save_embedding_layers: bool) -> None:
    model = load("llada").model
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])).eval()
    for name, parameter in adapted.named_parameters():
        if "modules_to_save" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path, save_embedding_layers=save_embedding_layers)
    assert_close(logits_of(load("llada", peft=str(tmp_path)).model), logits_of(adapted))


@pytest.mark.parametrize("trained", [{"modules_to_save": ["embed_tokens", "lm_head", "norm"]}, {"bias": "all"}])
def test_a_model_without_its_adapter_is_the_model_before(tmp_path: Path, trained: dict[str, Any]) -> None:
    """PEFT leaves what was trained whole in the model that it unloads."""
    model = random_llama(160, tie_word_embeddings=True, attention_bias=True)
    base = logits_of(model)
    adapted = get_peft_model(
        random_llama(160, tie_word_embeddings=True, attention_bias=True),
        LoraConfig(r=2, target_modules=["q_proj"], **trained),
    )
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path)
    loaded = load_adapter(model, str(tmp_path))
    assert not torch.allclose(logits_of(loaded), base)
    assert torch.equal(logits_of(without_adapter(loaded)), base)


def test_names_of_lladas_remote_code(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, expected = adapter
    weights = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        for native, remote in REMOTE_NAMES.items():
            name = name.replace(native, remote)
        weights[name] = tensor
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    patterns = {"rank_pattern": {"ff_proj": 3}, "alpha_pattern": {"ff_proj": 5}}
    modules = ["q_proj", "attn_out", "ff_proj", "ff_out"]
    edit_json(folder / "adapter_config.json", target_modules=modules, **patterns)
    denoiser = load("llada", peft=str(folder))
    assert_close(logits_of(denoiser.model), expected)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llada_moe", ["q_proj", "gate_proj", "up_proj", "down_proj"]),
        ("llada2", ["query_key_value", "attention.dense"]),
    ],
)
def test_an_adapter_of_remote_code(tmp_path: Path, family: str, targets: list[str]) -> None:
    """LLaDA-MoE's experts are modules of their own, where transformers' class has them fused; LLaDA2's q, k and v."""
    shutil.copytree(GOLDEN / family, tmp_path / "merged")
    weights = load_file(GOLDEN / family / "model.safetensors")
    torch.manual_seed(0)
    lora = {}
    for name in [name for name in weights if name.removesuffix(".weight").endswith(tuple(targets))]:
        rows, columns = weights[name].shape
        a, b = torch.randn(2, columns) * 0.3, torch.randn(rows, 2) * 0.3
        module = "base_model.model." + name.removesuffix(".weight")
        lora |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        weights[name] = weights[name] + b @ a * (8 / 2)
    assert len(lora) >= 8
    save_file(weights, tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    targets = [target.rpartition(".")[2] for target in targets]
    LoraConfig(r=2, lora_alpha=8, target_modules=targets).save_pretrained(tmp_path / "adapter")
    save_file(lora, tmp_path / "adapter" / "adapter_model.safetensors", {"format": "pt"})
    loaded = load(family, mask_token_id=159, peft=str(tmp_path / "adapter")).model
    assert_close(logits_of(loaded), logits_of(load(tmp_path / "merged", mask_token_id=159).model))


@pytest.mark.parametrize("name", ["layers.0", "layers.7", "missing"])
def test_an_adapter_for_another_model_is_refused(adapter: tuple[Path, torch.Tensor], name: str) -> None:
    folder, _ = adapter
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    if name == "layers.0":  # of another width
        weights = {key: torch.cat([tensor, tensor], dim=1) for key, tensor in weights.items()}
    elif name == "missing":
        weights.pop(next(key for key in weights if "lora_B" in key))
    else:  # of more layers
        weights |= {key.replace("layers.1", name): tensor for key, tensor in weights.items()}
    save_file({key: tensor.clone() for key, tensor in weights.items()}, path, {"format": "pt"})
    with pytest.raises((OptionError, RuntimeError), match=r"does not fit|size mismatch"):
        load("llada", peft=str(folder))
    with pytest.raises(OptionError, match="an adapter is pretrained=BASE,peft="):
        load_denoiser(str(folder))
