"""With `fused=true`, small operations between matrix products as one kernel each: of liger-kernel, and of our own.

They are bound to the modules of one model, if these compute what transformers' Llama or GLM-4-MoE computes: RMSNorm,
SwiGLU, rotary positions, and the weighted sum of experts. Classes and modules of code stay as they are.
"""

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm
from transformers.activations import SiLUActivation
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.llama import modeling_llama

from mdlm_lm_eval.model.compiled import is_on_one_device
from mdlm_lm_eval.model.devices import iota
from mdlm_lm_eval.options import OptionError

_ROTATION = "apply_rotary_pos_emb"


def fuse(model: nn.Module) -> Mapping[str, int]:
    """Binds kernels to a model's modules; returns how many there are of each kind.

    Raises OptionError if a norm, MLP, attention or mixture of the model is none that the kernels compute, and without
    a GPU or liger-kernel.
    """
    name = type(model).__name__
    if (device := next(model.parameters()).device).type != "cuda":
        raise OptionError(f"fused must be false on {device}, as its kernels need a GPU")
    if device.index != torch.cuda.current_device():
        raise OptionError(f"fused must be false on {device}, as Triton runs kernels on the current GPU")
    if not is_on_one_device(model):
        raise OptionError(f"fused must be false with {name} on several devices")
    bound: Counter[str] = Counter()
    for path, module in model.named_modules():
        kind = next((each for each in _KINDS if type(module).__name__.endswith(each)), None)
        if kind is None:
            continue
        if getattr(module, "is_fused", False):  # another denoiser of this model bound it
            bound[kind] += 1
            continue
        is_own = "forward" in vars(module) or (kind == "RMSNorm" and module.weight.dtype != model.dtype)
        if is_own or not _KINDS[kind](module):
            raise OptionError(f"fused must be false with {name}, as no kernel computes its {path}")
        module.is_fused = True
        bound[kind] += 1
    if not bound:
        raise OptionError(f"fused must be false with {name}, of which no kernel computes a part")
    return dict(bound)


def _is_same(function: Any, other: Any) -> bool:
    """Whether two functions have the same code, as those have that transformers copies from model to model."""
    function, other = inspect.unwrap(function), inspect.unwrap(other)
    parts = [
        (each.__name__, each.__code__.co_code, each.__code__.co_consts, each.__code__.co_names)
        for each in (function, other)
        if isinstance(each, FunctionType)
    ]
    return len(parts) == 2 and parts[0] == parts[1]


def of_liger(module: str, function: str) -> Callable[..., Any]:
    """An operation of liger-kernel."""
    try:
        found = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), function)
    except ImportError as error:
        raise OptionError(f'fused=true needs liger-kernel: pip install "mdlm-lm-eval[fast]" ({error})') from error
    return found.apply


def _bind_norm(module: Any) -> bool:
    if not _is_same(type(module).forward, modeling_llama.LlamaRMSNorm.forward):
        return False
    normalised = of_liger("rms_norm", "LigerRMSNormFunction")

    module.forward = lambda states: normalised(
        states, module.weight, module.variance_epsilon, 0.0, "llama", False, None
    )
    return True


def _bind_mlp(module: Any) -> bool:
    is_silu = isinstance(module.act_fn, (nn.SiLU, SiLUActivation))
    if not (is_silu and _is_same(type(module).forward, modeling_llama.LlamaMLP.forward)):
        return False
    gated = of_liger("swiglu", "LigerSiLUMulFunction")

    module.forward = lambda x: module.down_proj(gated(module.gate_proj(x), module.up_proj(x)))
    return True


def _bind_attention(module: Any) -> bool:
    """Binds a copy of the module's code that finds the kernel where it looks up how to rotate."""
    forward = inspect.unwrap(type(module).forward)
    names: dict[str, Any] = forward.__globals__
    rotations = modeling_llama.apply_rotary_pos_emb, modeling_glm4_moe.apply_rotary_pos_emb
    is_known = any(_is_same(names.get(_ROTATION), rotation) for rotation in rotations)
    is_halved = _is_same(names.get("rotate_half"), modeling_llama.rotate_half)
    if not (_ROTATION in forward.__code__.co_names and is_known and is_halved):
        return False
    rotated = of_liger("rope", "LigerRopeFunction")

    def rotate(queries: Tensor, keys: Tensor, cosines: Tensor, sines: Tensor) -> list[Tensor]:
        """Rotates queries and keys [B, H, T, D], as one row: the kernel is compiled anew for each number of rows."""
        batch, _, length, _ = queries.shape
        cosines, sines = (
            each.expand(batch, -1, -1).reshape(1, batch * length, each.shape[-1]) for each in (cosines, sines)
        )
        rows = (each.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for each in (queries, keys))
        found = rotated(*rows, cosines, sines)
        return [each.transpose(1, 2).unflatten(1, (batch, length))[0].transpose(1, 2) for each in found]

    own = FunctionType(forward.__code__, {**names, _ROTATION: rotate}, forward.__name__, forward.__defaults__)
    own.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(own, module)
    return True


def _bind_experts(module: Any) -> bool:
    is_plain = not (module.has_bias or module.is_transposed or module.has_post_expert_norm)
    if not (module.has_gate and is_plain) or module.config._experts_implementation != "grouped_mm":
        return False
    module.forward = MethodType(_experts, module)
    return True


def _experts(module: Any, states: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """The sum [T, H] of the results of K `experts` [T, K] for `states` [T, H], by their `weights` [T, K].

    As transformers' `grouped_mm`, which scales the results in float32, sorts and sums them in kernels of their own.
    """
    from mdlm_lm_eval.model.kernels import weighted_sum

    expert_of, order = experts.flatten().sort()  # [T * K] each
    ends = torch.searchsorted(expert_of, iota(module.num_experts, states.device), right=True, out_int32=True)
    places = torch.empty_like(order)
    places[order] = iota(len(order), order.device)
    hidden = grouped_mm(states[order // experts.shape[1]], module.gate_up_proj.transpose(1, 2), offs=ends)
    found = grouped_mm(module._apply_gate(hidden), module.down_proj.transpose(1, 2), offs=ends)
    return weighted_sum(found, weights, places.view_as(experts))


# By the end of a class's name: what binds a kernel to a module of it, or returns False if none computes the same.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "RMSNorm": _bind_norm,
    "MLP": _bind_mlp,
    "Attention": _bind_attention,
    "Experts": _bind_experts,
}
