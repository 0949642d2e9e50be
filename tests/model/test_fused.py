"""`fused=true` reaches every module of a model, changes no token, and no other model of the process.

Kernels are stand-ins in torch, on a GPU that is none; where Triton is installed, it interprets our own.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Glm4MoeConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.glm4_moe.modeling_glm4_moe import apply_rotary_pos_emb
from transformers.models.qwen2 import modeling_qwen2

from mdlm_lm_eval.from_python import decode
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest
from mdlm_lm_eval.likelihood.scoring import score
from mdlm_lm_eval.model import fused
from mdlm_lm_eval.model.attention import FULL_ATTENTION, AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError
from tests.conftest import data
from tests.pretended_gpu import PretendedGpu

ROOT = Path(__file__).parents[2]
SIZES: dict[str, Any] = data("cases.json")["sizes of fused models"]
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
GLM: dict[str, Any] = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
ALWAYS = {"Attention": 2, "RMSNorm": 5, "MLP": 2}
MODELS: dict[str, tuple[Any, dict[str, int]]] = {
    "llama": (LlamaConfig(**SIZES), ALWAYS),
    "qwen2": (Qwen2Config(**SIZES), ALWAYS),
    "qwen3": (Qwen3Config(head_dim=8, **SIZES), ALWAYS | {"RMSNorm": 9}),
    "qwen3_moe": (
        Qwen3MoeConfig(num_experts=4, **EXPERTS, **SIZES),
        {"Attention": 2, "RMSNorm": 9, "Experts": 2},
    ),
    "glm4_moe": (
        Glm4MoeConfig(partial_rotary_factor=0.5, use_qk_norm=True, **GLM, **EXPERTS, **SIZES),
        ALWAYS | {"RMSNorm": 9, "Experts": 1},
    ),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stand-in ran."""
    counted: Counter[str] = Counter()

    def norm(states: Tensor, weight: Tensor, eps: float, *_: object) -> Tensor:
        counted["RMSNorm"] += 1
        whole = states.float()
        return weight * (whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + eps)).to(states.dtype)

    def gated(gate: Tensor, up: Tensor) -> Tensor:
        counted["MLP"] += 1
        return silu(gate) * up

    def rotated(queries: Tensor, keys: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
        counted["Attention"] += 1
        assert all(len(each) == 1 for each in (queries, keys, cosines, sines))
        found: tuple[Tensor, Tensor] = apply_rotary_pos_emb(queries, keys, cosines, sines)
        return found

    def weighted_sum(states: Tensor, weights: Tensor, places: Tensor) -> Tensor:
        counted["Experts"] += 1
        return (states[places] * weights[..., None]).sum(1).to(states.dtype)

    def surest(logits: Tensor) -> tuple[Tensor, Tensor]:
        counted["proposals"] += 1
        tokens = logits.argmax(-1)
        rest = logits.double() - logits.gather(1, tokens[:, None])
        return tokens, rest.exp().scatter(1, tokens[:, None], 0.0).sum(1).float()

    of_liger = {"LigerRMSNormFunction": norm, "LigerSiLUMulFunction": gated, "LigerRopeFunction": rotated}
    monkeypatch.setattr(fused, "of_liger", lambda _, function: of_liger[function])
    ours = ModuleType("kernels")
    ours.weighted_sum, ours.surest = weighted_sum, surest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mdlm_lm_eval.model.kernels", ours)
    return counted


def a_model(name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name][0]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_module_runs_in_kernels_and_no_answer_changes(name: str, calls: Counter[str]) -> None:
    attention = FULL_ATTENTION if name in ("llama", "qwen2") else AttentionPattern(4)
    options = DecodingOptions(n_masks=8)
    texts = [[3, 4, 5, 6, 7], [8, 9]]
    requests = [LikelihoodRequest([3, 4, 5], [7, 8], 0), LikelihoodRequest([3, 4, 5, 6], [9], 1)]

    def answers(denoiser: Denoiser) -> tuple[Any, list[float]]:
        scores = score(denoiser, requests, LikelihoodOptions(mc_num=8), batch_size=4, max_length=64)
        return decode(denoiser, texts, options), [each.total for each in scores]

    ids = {"mask_token_id": 2, "pad_token_id": 0}
    with PretendedGpu() as gpu:
        model, other = gpu.move(a_model(name)), gpu.move(a_model(name))
        ours, theirs = (Denoiser(each, attention=attention, fused=each is model, **ids) for each in (model, other))
        assert ours.fused == MODELS[name][1]
        assert Denoiser(model, attention=attention, fused=True, **ids).fused == ours.fused
        assert not any("forward" in vars(module) for module in other.modules())
        texts_of_others, totals_of_others = answers(theirs)
        assert not calls
        found, totals = answers(ours)
        assert gpu.report.captured
        assert found == texts_of_others
        assert totals == pytest.approx(totals_of_others, abs=1e-4)
        assert calls.pop("proposals") > 0
        assert set(calls) == set(ours.fused)
        runs = {kind: calls[kind] / ours.fused[kind] for kind in calls}
        assert len(set(runs.values())) == 1, runs


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (Gemma2Config(head_dim=8, **SIZES), "mlp"),
        (LlamaConfig(hidden_act="gelu", **SIZES), "mlp"),
        (Qwen2Config(**SIZES), "self_attn"),
    ],
)
def test_a_module_that_the_kernels_do_not_compute_is_named(
    config: Any, part: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_qwen2, "rotate_half", lambda x: x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
    with PretendedGpu() as gpu:
        model = gpu.move(AutoModelForCausalLM.from_config(config))
        with pytest.raises(OptionError, match=f"no kernel computes its model.layers.0.{part}$"):
            fused.fuse(model)


def test_a_model_is_fused_on_a_gpu_and_not_compiled_too() -> None:
    model = a_model("llama")
    with pytest.raises(OptionError, match="fused must be false on cpu"):
        Denoiser(model, mask_token_id=2, pad_token_id=0, fused=True)
    with pytest.raises(OptionError, match="fused must be false with compile=true"):
        Denoiser(model, mask_token_id=2, pad_token_id=0, fused=True, compiled=True)


def test_without_liger_kernel_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with PretendedGpu() as gpu:
        model = gpu.move(a_model("llama"))
        with pytest.raises(OptionError, match=r"mdlm-lm-eval\[fast\]"):
            fused.fuse(model)


INTERPRETED = """
import json, math, torch
from mdlm_lm_eval.model.kernels import surest, weighted_sum
torch.manual_seed(0)
logits = torch.randn(9, 9001) * 4
logits[1, 17] = 60.0
logits[2, 8000] = logits[2, 100] = 30.0
logits[3] = 1.0
logits[4, :5000] = -math.inf
logits[5, 4] = math.nan
logits[6, 4097] = math.inf
logits[7] = -math.inf
tokens, others = surest(logits)
exact = logits.double().softmax(-1)
best = exact.gather(1, logits.argmax(-1, keepdim=True))
rest = exact.scatter(1, logits.argmax(-1, keepdim=True), 0.0).sum(-1, keepdim=True)
states, weights, places = torch.randn(80, 2050), torch.rand(20, 4), torch.randperm(80).view(20, 4)
wanted = (states[places] * weights[..., None]).sum(1)
print(json.dumps({
    "tokens": [int(a == b) for a, b in zip(tokens, logits.argmax(-1))],
    "others": ((others[:, None] / (rest / best)).squeeze(1) - 1).abs().tolist(),
    "sums": float((weighted_sum(states, weights, places) - wanted).abs().max()),
}))
"""


def test_our_kernels_compute_what_torch_computes() -> None:
    pytest.importorskip("triton")
    variables = os.environ | {"TRITON_INTERPRET": "1"}  # read when Triton is imported
    said = subprocess.run([sys.executable, "-c", INTERPRETED], env=variables, check=True, capture_output=True, cwd=ROOT)
    found = json.loads(said.stdout)
    finite = [0, 1, 2, 3, 4, 8]
    assert [found["tokens"][row] for row in finite] == [1] * len(finite)
    assert max(found["others"][row] for row in finite) < 1e-5
    assert all(found["others"][row] != found["others"][row] for row in (5, 6, 7))
    assert found["sums"] < 1e-5
