"""iLLaDA, Nemotron-Labs-Diffusion and LLaDA2.2: logits against reference outputs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from mdlm_lm_eval.decoding import decode
from mdlm_lm_eval.families import family_of, load_config, load_denoiser, load_tokenizer
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, OptionError

GOLDEN = Path(__file__).parent / "golden"
ILLADA, NEMOTRON, LLADA22 = GOLDEN / "illada", GOLDEN / "nemotron_labs_diffusion", GOLDEN / "llada22"


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 2e-5, or what rounding makes of larger logits."""
    torch.testing.assert_close(found, expected, atol=max(2e-5, 2e-6 * expected.abs().max().item()), rtol=0)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_of_illada(side: str) -> None:
    tensors, denoiser = load_file(ILLADA / "golden.safetensors"), load_denoiser(str(ILLADA), dtype="float32")
    ids = tensors["logits.input_ids"]  # [3, 24]
    lengths = [24] * 3 if side == "none" else tensors["ragged.lengths"].tolist()
    widths = [(24 - n, 0) if side == "left" else (0, 24 - n) for n in lengths]
    rows, real = (
        torch.stack(
            [torch.nn.functional.pad(row[:n], width) for row, n, width in zip(values, lengths, widths, strict=True)]
        )
        for values in (ids, torch.ones_like(ids))
    )
    expected = tensors["logits.output" if side == "none" else "ragged.output"]
    found = denoiser.logits(rows, real, real.flatten().nonzero().squeeze(1))
    assert_close(found, torch.cat([row[:n] for row, n in zip(expected, lengths, strict=True)]))


def test_what_illada_is() -> None:
    config = load_config(str(ILLADA))
    assert (family_of(config).name, config.mask_token_id, config.is_causal) == ("illada", 5, False)
    assert load_tokenizer(str(ILLADA), config=config).mask_token == "<[MASK]>"


def nemotron_logits(denoiser: Denoiser, ids: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """[T, V] of one canvas [T]."""
    return denoiser.logits(ids[None], None, torch.arange(len(ids)), prompt_lengths=torch.tensor([prompt_length]))


def test_logits_of_nemotron_labs_diffusion() -> None:
    tensors = load_file(NEMOTRON / "golden.safetensors")
    denoiser = load_denoiser(str(NEMOTRON), dtype="float32")
    whole = load_denoiser(str(NEMOTRON), dtype="float32", block_length=28)
    assert (denoiser.mask_token_id, denoiser.attention.block_length) == (100, 8)
    for row, ids in enumerate(tensors["causal.input_ids"]):  # [28]
        assert_close(nemotron_logits(denoiser, ids, 28), tensors["causal.output"][row])
        assert_close(nemotron_logits(whole, ids, 0), tensors["bidirectional.output"][row])
        n_prompt = int(tensors["blocks.prompt_lengths"][row])
        prompt, final, noisy = ids[:n_prompt], tensors["blocks.final"][row], tensors["blocks.noisy"][row]
        for block in range(3):
            finished = torch.cat([prompt, final[: 8 * block]])
            canvas = torch.cat([finished, noisy[8 * block : 8 * block + 8]])
            assert_close(nemotron_logits(denoiser, canvas, n_prompt)[-8:], tensors["blocks.output"][row, block])
            found = nemotron_logits(denoiser, finished, len(finished))[-1]
            assert_close(found, tensors["blocks.next_token_logits"][row, block])


def test_padding_changes_nothing_behind_a_causal_context() -> None:
    tensors = load_file(NEMOTRON / "golden.safetensors")
    denoiser = load_denoiser(str(NEMOTRON), dtype="float32")
    canvases = [
        torch.cat([ids[:n], noisy[:8]])
        for ids, n, noisy in zip(
            tensors["causal.input_ids"], tensors["blocks.prompt_lengths"].tolist(), tensors["blocks.noisy"], strict=True
        )
    ]
    width = max(map(len, canvases))
    for left in (True, False):
        pads = [(width - len(row), 0) if left else (0, width - len(row)) for row in canvases]
        rows = torch.stack([torch.nn.functional.pad(row, pad) for row, pad in zip(canvases, pads, strict=True)])
        real = torch.stack(
            [torch.nn.functional.pad(torch.ones_like(row), pad) for row, pad in zip(canvases, pads, strict=True)]
        )
        positions = real.flatten().nonzero().squeeze(1)
        found = denoiser.logits(rows, real, positions, prompt_lengths=tensors["blocks.prompt_lengths"])
        parts = found.split([len(row) for row in canvases])
        for part, expected in zip(parts, tensors["blocks.output"][:, 0], strict=True):
            assert_close(part[-8:], expected)


@pytest.mark.parametrize("block_length", [8, 16])
def test_logits_of_llada22(block_length: int) -> None:
    tensors = load_file(LLADA22 / "golden.safetensors")
    denoiser = load_denoiser(str(LLADA22), dtype="float32", mask_token_id=159, block_length=block_length)
    ids, expected = tensors["logits.input_ids"], tensors[f"logits.block{block_length}.output"]  # [3, 32], [3, 32, V]
    assert_close(denoiser.logits(ids, None, torch.arange(ids.numel())), expected.flatten(0, 1))
    lengths = [16, 32, 16]
    for left in (True, False):
        widths = [(32 - n, 0) if left else (0, 32 - n) for n in lengths]
        rows, real = (
            torch.stack([torch.nn.functional.pad(row[:n], w) for row, n, w in zip(of, lengths, widths, strict=True)])
            for of in (ids, torch.ones_like(ids))
        )
        found = denoiser.logits(rows, real, real.flatten().nonzero().squeeze(1))
        assert_close(found, torch.cat([row[:n] for row, n in zip(expected, lengths, strict=True)]))


def test_what_llada22_is(tmp_path: Path) -> None:
    denoiser = load_denoiser(str(LLADA22), dtype="float32", mask_token_id=159)
    config = denoiser.model.config
    assert (family_of(config).name, denoiser.attention.block_length, config.expert_capacity) == ("llada22", 8, 6)
    with pytest.raises(OptionError, match="block_length must be a multiple of 8"):
        load_denoiser(str(LLADA22), mask_token_id=159, block_length=12)
    denoiser.model.save_pretrained(tmp_path)
    saved, ids = load_denoiser(str(tmp_path), mask_token_id=159), torch.arange(16)[None]
    torch.testing.assert_close(
        saved.logits(ids, None, torch.arange(16)), denoiser.logits(ids, None, torch.arange(16)), atol=0, rtol=0
    )


@pytest.mark.parametrize(
    "changes", [{"expert_capacity": 2}, {"expert_capacity": 17}, {"expert_capacity_per_layer": 4}, {"n_hash_layers": 1}]
)
def test_an_unknown_llada2_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    settings = json.loads((LLADA22 / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(OptionError, match=r"LLaDA2.* config: "):
        load_config(str(tmp_path))


TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": 0}
# Keys of the published config.json, beside sizes; DreamReasoner's as far as ports of it name them.
STABLE_DIFFCODER = {
    "architectures": ["StableDiffcoderForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_stable_diffcoder.StableDiffcoderForCausalLM"},
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "layer_norm_eps": None,
    "mlp_bias": False,
    "resid_pdrop": 0.1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
}
DREAM_REASONER = {
    "architectures": ["DreamForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_dream.DreamForCausalLM"},
    "model_type": "Dream",
    "block_size": 8,
    "mask_token_id": 5,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
BACKBONES = {
    "stable-diffcoder": (STABLE_DIFFCODER, LlamaForCausalLM, LlamaConfig, 4, {"mask_token_id": 5}, "no masked diff"),
    "dream-reasoner": (DREAM_REASONER, Qwen3ForCausalLM, Qwen3Config, 8, {"model_type": "qwen3"}, "block_size=8"),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_block_diffusion_on_a_known_backbone(name: str, tmp_path: Path) -> None:
    """With `is_causal` and `block_length` in its config.json, and without a cache as their samplers are described."""
    published, model_class, config_class, length, said, refusal = BACKBONES[name]
    torch.manual_seed(0)
    sizes = {**TINY, "initializer_range": 0.4, "rope_theta": published["rope_theta"], "rms_norm_eps": 1e-6}
    model: PreTrainedModel = model_class(config_class(**sizes, head_dim=8)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **published}))
    with pytest.raises(OptionError, match=refusal):
        load_denoiser(str(tmp_path), mask_token_id=5)
    edited = {**TINY, **published, "is_causal": False, "block_length": length, **said}
    (tmp_path / "config.json").write_text(json.dumps(edited))
    denoiser = load_denoiser(str(tmp_path))

    def logits(ids: torch.Tensor) -> torch.Tensor:
        """[T, V] of a row [T]: tokens see their own block and those before."""
        block = torch.arange(len(ids)) // length
        hidden = block[None] > block[:, None]
        added = torch.zeros(len(ids), len(ids)).masked_fill(hidden, torch.finfo(torch.float32).min)
        with torch.no_grad():
            return model(ids[None], attention_mask=added[None, None]).logits[0]

    ids = torch.randint(6, 64, (27,))
    assert_close(denoiser.logits(ids[None], None, torch.arange(27)), logits(ids))
    n_prompt, threshold = 6, 0.4
    canvas = torch.cat([ids[:n_prompt], torch.full((26,), 5)])
    for start in range(0, 32, length):
        block = torch.arange(start, start + length)
        while (masks := block[canvas[block] == 5]).numel():
            probabilities = logits(canvas[: start + length]).index_fill(1, torch.tensor(5), -torch.inf).softmax(-1)
            confidence, tokens = probabilities[masks].max(-1)
            chosen = confidence > threshold
            chosen[confidence.argmax()] = True
            canvas[masks[chosen]] = tokens[chosen]
    options = DecodingOptions(n_masks=26, confidence_threshold=threshold, steps_per_block=length)
    (found,) = decode(denoiser, [ids[:n_prompt].tolist()], options)
    assert found == canvas[n_prompt:].tolist()
