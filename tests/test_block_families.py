"""Block diffusion families: logits against their reference code's, and what their checkpoints must say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

from mdlm_lm_eval.families import AttentionPattern, all_families, family_of, load_config, load_tokenizer
from mdlm_lm_eval.lm import MDLM
from mdlm_lm_eval.loading import load_denoiser
from mdlm_lm_eval.model.attention import block_causal_mask
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import OptionError
from tests.conftest import tiny_tokenizer

GOLDEN = Path(__file__).parent / "golden"
MASK = 159
FOLDERS = {
    "llada2": "llada2",
    "llada21": "llada21",
    "sdar": "sdar",
    "a2d_bd3lm": "a2d-qwen3",
    "fast_dllm_v2": "fast_dllm_v2",
}
CASES = [
    (folder, block_length)
    for folder in FOLDERS
    for block_length in json.loads((GOLDEN / folder / "golden.json").read_text())["logits_block_lengths"]
]


def golden(folder: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / folder / "golden.safetensors")


def load(folder: str | Path, **arguments: Any) -> Denoiser:
    return load_denoiser(str(GOLDEN / folder), dtype="float32", mask_token_id=MASK, **arguments)


def copy_of(folder: str, path: Path, **changes: object) -> Path:
    """A copy of a golden checkpoint with other settings in its config.json; None takes one away."""
    shutil.copytree(GOLDEN / folder, path)
    settings = json.loads((path / "config.json").read_text()) | changes
    kept = {name: value for name, value in settings.items() if name not in changes or changes[name] is not None}
    (path / "config.json").write_text(json.dumps(kept))
    return path


def logits(denoiser: Denoiser, input_ids: Tensor, block_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        mask = block_causal_mask(block_ids)
        return denoiser.model(input_ids, attention_mask=mask, position_ids=position_ids).logits  # [B, T, V]


@pytest.mark.parametrize(("folder", "block_length"), CASES)
def test_logits_match_the_reference(folder: str, block_length: int) -> None:
    tensors = golden(folder)
    input_ids = tensors["logits.input_ids"]  # [3, T]
    block_ids = (torch.arange(input_ids.shape[1]) // block_length).expand_as(input_ids)
    found = logits(load(folder), input_ids, block_ids)
    torch.testing.assert_close(found, tensors[f"logits.block{block_length}.output"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_rows_match_the_reference_run_alone(folder: str, side: str) -> None:
    tensors = golden(folder)
    block_length = json.loads((GOLDEN / folder / "golden.json").read_text())["ragged_block_length"]
    lengths, ids = tensors["ragged.lengths"].tolist(), tensors["logits.input_ids"]
    width = max(lengths)
    left = [width - n if side == "left" else 0 for n in lengths]
    input_ids = torch.stack([pad(row[:n], (at, width - n - at)) for row, n, at in zip(ids, lengths, left, strict=True)])
    positions = torch.arange(width) - torch.tensor(left)[:, None]  # [3, T]
    real = (positions >= 0) & (positions < torch.tensor(lengths)[:, None])
    block_ids = torch.where(real, positions // block_length, -1)
    found = logits(load(folder), input_ids, block_ids, positions.clamp(min=0))
    expected = tensors[f"ragged.block{block_length}.output"]
    for row, (n, at) in enumerate(zip(lengths, left, strict=True)):
        torch.testing.assert_close(found[row, at : at + n], expected[row, :n], atol=1e-4, rtol=0)


def test_a2ds_own_left_padding() -> None:
    tensors = golden("a2d_bd3lm")
    (name,) = (name for name in tensors if name.startswith("left_padded.block"))
    block_length = int(name.split(".")[1].removeprefix("block"))
    input_ids = tensors["left_padded.input_ids"]
    real = input_ids != json.loads((GOLDEN / "a2d_bd3lm" / "golden.json").read_text())["pad_token_id"]
    block_ids = torch.where(real, torch.arange(input_ids.shape[1]) // block_length, -1)
    found = logits(load("a2d_bd3lm"), input_ids, block_ids, tensors["left_padded.position_ids"])
    torch.testing.assert_close(found[real], tensors[name][real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2"])
def test_an_implementation_that_takes_no_mask_is_refused(implementation: str, checkpoint: str) -> None:
    with pytest.raises(OptionError, match=f"attn_implementation={implementation} must be sdpa or eager"):
        load("sdar", attn_implementation=implementation)
    with pytest.raises(OptionError, match=f"attn_implementation={implementation} must be sdpa or eager"):
        MDLM(str(GOLDEN / "sdar"), tokenizer=str(checkpoint), mask_token_id=MASK, attn_implementation=implementation)
    canvas = torch.randint(MASK, (1, 12), generator=torch.Generator().manual_seed(0))
    eager, sdpa = (
        load("sdar", attn_implementation=name).logits(canvas, None, torch.arange(12)) for name in ("eager", "sdpa")
    )
    torch.testing.assert_close(eager, sdpa, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("folder", "pattern", "shift", "edits"),
    [
        ("llada2", AttentionPattern(32), False, True),
        ("llada21", AttentionPattern(32), False, True),
        ("sdar", AttentionPattern(4), False, False),
        ("a2d_bd3lm", AttentionPattern(32, "prompt_end"), False, False),
        ("fast_dllm_v2", AttentionPattern(32), True, False),
    ],
)
def test_what_a_denoiser_knows(folder: str, pattern: AttentionPattern, shift: bool, edits: bool) -> None:
    denoiser = load(folder)
    assert family_of(denoiser.model.config).name == FOLDERS[folder]
    assert (denoiser.attention, denoiser.shift, denoiser.edits) == (pattern, shift, edits)
    assert load(folder, block_length=16).attention.block_length == 16


def test_releases_differ_in_what_their_authors_publish() -> None:
    families = all_families()
    assert families["llada2"].decoding_defaults == {"steps_per_block": 32, "confidence_threshold": 0.95}
    assert families["llada21"].decoding_defaults["editing_threshold"] == 0.9


def test_the_block_length_stands_in_the_name_and_survives_saving(tmp_path: Path) -> None:
    assert load(copy_of("sdar", tmp_path / "SDAR-1.7B-Chat", block_size=None)).attention.block_length == 4
    denoiser = load(copy_of("sdar", tmp_path / "SDAR-1.7B-Chat-b8"))
    assert denoiser.attention.block_length == 8
    denoiser.model.save_pretrained(tmp_path / "merged")
    saved = load(tmp_path / "merged")
    assert (saved.attention.block_length, family_of(saved.model.config).name) == (8, "sdar")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_saved_model_has_the_names_of_its_config(folder: str, tmp_path: Path) -> None:
    denoiser = load(folder)
    denoiser.model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert not any("query_key_value" in name for name in names)
    ids = golden(folder)["logits.input_ids"]
    blocks = torch.zeros_like(ids)
    torch.testing.assert_close(logits(load(tmp_path), ids, blocks), logits(denoiser, ids, blocks), atol=0, rtol=0)
    assert load(tmp_path).attention == denoiser.attention


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", "a2d-qwen3"),
        ("Qwen3-0.6B-diffusion-mdlm-v0.1", "a2d-qwen3-mdlm"),
        ("bd3lm/checkpoint-final", "a2d-qwen3"),
    ],
)
def test_a2ds_names_tell_its_attention(name: str, family: str, tmp_path: Path) -> None:
    denoiser = load(copy_of("a2d_bd3lm", tmp_path / name))
    assert family_of(denoiser.model.config).name == family
    assert denoiser.attention.is_block_causal == (family == "a2d-qwen3")


def test_a2d_without_a_name_needs_a_word(tmp_path: Path) -> None:
    folder = copy_of("a2d_bd3lm", tmp_path / "model")
    with pytest.raises(OptionError, match="nothing says whether its family is a2d-qwen3 or a2d-qwen3-mdlm"):
        load(folder)
    named = copy_of("a2d_bd3lm", tmp_path / "named", diffusion_family="a2d-qwen3-mdlm")
    assert not load(named).attention.is_block_causal


@pytest.mark.parametrize(("base", "layer"), [("a2d-qwen2", "Qwen2"), ("a2d-llama", "Llama")])
def test_a2ds_other_bases(base: str, layer: str, tmp_path: Path) -> None:
    folder = copy_of("a2d_bd3lm", tmp_path / "bd3lm", model_type=base, attention_bias=None)
    weights = {name: t for name, t in load_file(folder / "model.safetensors").items() if "_norm." not in name}
    if base == "a2d-qwen2":  # biased
        weights |= {
            name.replace("weight", "bias"): torch.zeros(tensor.shape[0])
            for name, tensor in weights.items()
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
        }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    denoiser = load(folder)
    assert type(denoiser.model).__name__ == f"{layer}ForCausalLM"
    assert (family_of(denoiser.model.config).name, denoiser.attention.blocks_from) == (base, "prompt_end")


def test_sdars_mixture_of_experts(tmp_path: Path) -> None:
    """A Qwen3-MoE under another name."""
    settings = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    folder = copy_of("sdar", tmp_path / "sdar_moe", model_type="sdar_moe", mlp_only_layers=[], **settings)
    weights = {name: t for name, t in load_file(folder / "model.safetensors").items() if ".mlp." not in name}
    torch.manual_seed(0)
    for layer in range(3):
        mlp = f"model.layers.{layer}.mlp"
        weights[f"{mlp}.gate.weight"] = torch.randn(4, 32)
        for expert in range(4):
            shapes = {"gate": (16, 32), "up": (16, 32), "down": (32, 16)}
            for name, shape in shapes.items():
                weights[f"{mlp}.experts.{expert}.{name}_proj.weight"] = torch.randn(shape)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    denoiser = load(folder)
    assert type(denoiser.model).__name__ == "Qwen3MoeForCausalLM"
    gate_up = denoiser.model.model.layers[1].mlp.experts.gate_up_proj  # [E, 2 I, H]
    torch.testing.assert_close(gate_up[2, :16], weights["model.layers.1.mlp.experts.2.gate_proj.weight"])
    assert (denoiser.attention.block_length, denoiser.model.config.norm_topk_prob) == (4, True)


@pytest.mark.parametrize(
    ("folder", "setting"),
    [
        ("llada2", {"score_function": "softmax"}),
        ("llada2", {"moe_router_enable_expert_bias": False}),
        ("llada2", {"norm_topk_prob": False}),
        ("llada2", {"use_bias": True}),
        ("llada2", {"use_sliding_window": True}),
        ("llada2", {"num_shared_experts": 0}),
        ("llada2", {"n_group": 5}),
        ("sdar", {"use_sliding_window": True}),
        ("a2d_bd3lm", {"use_sliding_window": True}),
    ],
)
def test_a_setting_without_equivalent_is_refused_before_weights_are_read(
    folder: str, setting: dict[str, object], tmp_path: Path
) -> None:
    checkpoint = copy_of(folder, tmp_path / folder, **setting)
    (checkpoint / "model.safetensors").unlink()
    name = {"n_group": "n_group=5"}.get(next(iter(setting)), next(iter(setting)))
    with pytest.raises(OptionError, match=name):
        load(checkpoint)


def test_a_class_that_the_installed_transformers_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("transformers.core_model_loading.Split")
    with pytest.raises(OptionError, match="the family llada2 needs a newer transformers than"):
        load("llada2")


@pytest.mark.parametrize(
    ("folder", "key", "value", "said"),
    [
        ("sdar", "block_size", 0, "0"),
        ("fast_dllm_v2", "bd_size", "32", '"32"'),
        ("fast_dllm_v2", "bd_size", None, "null"),
        ("a2d_bd3lm", "block_length", 2.5, "2.5"),
        ("llada2", "block_length", True, "true"),
    ],
)
def test_a_block_length_in_config_json_is_a_whole_number(
    folder: str, key: str, value: object, said: str, tmp_path: Path
) -> None:
    checkpoint = copy_of(folder, tmp_path / folder, **{key: value})
    with pytest.raises(OptionError, match=f"{key} in config.json must be a whole number from 1, not {said}$"):
        load(checkpoint)


@pytest.mark.parametrize("block_length", [0, -4, 2.5])
def test_a_block_length_is_a_whole_number(block_length: Any) -> None:
    with pytest.raises(OptionError, match=r"block_length must be a whole number from 1, not "):
        load("sdar", block_length=block_length)


@pytest.mark.parametrize(
    "name", ["attention.query_key_value.weight", "mlp.experts.3.up_proj.weight", "mlp.gate.expert_bias"]
)
def test_missing_weights_of_llada2_are_named(name: str, tmp_path: Path) -> None:
    folder = copy_of("llada2", tmp_path / "llada2")
    weights = load_file(folder / "model.safetensors")
    del weights[f"model.layers.1.{name}"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(OptionError, match=r"missing: model\.layers\.1\."):
        load(folder)


def test_llada2s_weights_cannot_be_split_over_devices_while_they_are_fused() -> None:
    with pytest.raises(OptionError, match="tp_plan=auto does not work with the family llada2"):
        load("llada2", tp_plan="auto")


def test_llada2_on_disk(tmp_path: Path) -> None:
    """What is split while loading may lie on disk, as other weights may."""
    device_map = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.layers.2": "cpu",
    }
    device_map |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    ids = golden("llada2")["logits.input_ids"]
    blocks = torch.zeros_like(ids)
    offloaded = load("llada2", device_map=device_map, offload_folder=str(tmp_path))
    torch.testing.assert_close(logits(offloaded, ids, blocks), logits(load("llada2"), ids, blocks))


def test_an_adapter_of_llada2s_remote_code(tmp_path: Path) -> None:
    merged = copy_of("llada2", tmp_path / "llada2")
    weights, lora = load_file(merged / "model.safetensors"), {}
    torch.manual_seed(0)
    for name in [name for name in weights if name.endswith(("query_key_value.weight", "attention.dense.weight"))]:
        rows, columns = weights[name].shape
        a, b = torch.randn(2, columns) * 0.3, torch.randn(rows, 2) * 0.3
        module = "base_model.model." + name.removesuffix(".weight")
        lora |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        weights[name] = weights[name] + b @ a * (8 / 2)
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    adapter = tmp_path / "adapter"
    LoraConfig(r=2, lora_alpha=8, target_modules=["query_key_value", "dense"]).save_pretrained(adapter)
    save_file(lora, adapter / "adapter_model.safetensors", {"format": "pt"})
    ids = golden("llada2")["logits.input_ids"]
    blocks = torch.zeros_like(ids)
    adapted, expected = load("llada2", peft=str(adapter)), load(merged)
    torch.testing.assert_close(logits(adapted, ids, blocks), logits(expected, ids, blocks), atol=1e-4, rtol=0)


@pytest.mark.parametrize("folder", FOLDERS)
def test_tokenizers_load_without_remote_code(folder: str, tmp_path: Path) -> None:
    checkpoint = copy_of(folder, tmp_path / folder, mask_token_id=7)
    tiny_tokenizer().save_pretrained(checkpoint)
    path = checkpoint / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("mask_token", None)
    path.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(str(checkpoint))
    assert tokenizer.mask_token_id == 7
    assert tokenizer("ab")["input_ids"] == tiny_tokenizer()("ab")["input_ids"]
    assert load_config(str(checkpoint)).mask_token_id == 7
