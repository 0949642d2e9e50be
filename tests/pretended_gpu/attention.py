"""scaled_dot_product_attention as CUDA takes it: which kernel, what is refused, and memory beside the result."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.pretended_gpu.operators import Operator
from tests.pretended_gpu.report import PretendedGpuError, place
from tests.pretended_gpu.tensors import GpuTensor

# Not an operator of its own: torch chooses one by the device.
ATTENTION = Operator(
    aten=None,
    name="scaled_dot_product_attention",
    is_view=False,
    launches=True,
    in_place=False,
    run=scaled_dot_product_attention,
)

if TYPE_CHECKING:
    from tests.pretended_gpu.device import PretendedGpu


def attend(
    gpu: "PretendedGpu",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention of queries [B, H, Q, D]; the report holds their distinct shapes."""
    tensors = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
    gpu.check_devices(ATTENTION.name, tensors)
    if torch.is_autocast_enabled("cuda"):
        query, key, value = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (query, key, value))
    _check(query, key, value, attn_mask)
    kernel = kernel_for(query, key, value, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    shapes = *(tuple(tensor.shape) for tensor in tensors), tuple(key.stride()), is_causal
    gpu.report.attention_shapes.add(shapes)
    beside: list[GpuTensor] = []
    if kernel == "efficient" and attn_mask is not None and attn_mask.dtype is torch.bool:
        beside.append(gpu.unused(attn_mask.shape, query))  # what is added to the scores
        gpu.launched(2)
    elif kernel == "math":
        beside.append(gpu.unused((*query.shape[:3], key.shape[2]), query))
        gpu.launched(4)
    gpu.launched()
    named = {
        "attn_mask": attn_mask,
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
    }
    on_gpu = [tensor for tensor in (query, key, value, attn_mask) if isinstance(tensor, GpuTensor)]
    return gpu.compute(ATTENTION, (query, key, value), named, query.device, on_gpu)


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise PretendedGpuError(f"attention of {query.dtype}, {key.dtype} and {value.dtype} at {place()}")
    if mask is None:
        return
    if mask.dtype not in (torch.bool, query.dtype):
        raise PretendedGpuError(f"attention of {query.dtype} with a mask of {mask.dtype} at {place()}")
    if mask.shape[-1] != key.shape[2]:
        raise PretendedGpuError(f"attention over {key.shape[2]} keys with a mask of {tuple(mask.shape)} at {place()}")


def kernel_for(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool, enable_gqa: bool
) -> str:
    """`flash`, `efficient` or `math`: the first that takes this (torch's `sdp_utils.cpp`, without cuDNN)."""
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return "math"
    is_half, same_heads = query.dtype in (torch.bfloat16, torch.float16), query.shape[1] == key.shape[1]
    is_square = not is_causal or query.shape[2] == key.shape[2]
    if is_half and mask is None and query.shape[-1] <= 256 and (same_heads or enable_gqa) and is_square:
        return "flash"
    takes_mask = mask is None or mask.stride(-1) == 1 or mask.shape[-1] == 1
    return "efficient" if same_heads and query.shape[-1] % (8 if is_half else 4) == 0 and takes_mask else "math"
