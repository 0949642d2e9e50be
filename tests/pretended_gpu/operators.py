"""What is known of ATen's operators on CUDA: which wait, launch nothing, and what they make of unknown numbers."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.pretended_gpu.tensors import mapped

# Their result's size or value depends on numbers, which the host must read.
_WAITING = frozenset(
    [
        *("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "argwhere", "bincount"),
        *("unique_dim", "unique_consecutive", "_unique", "_unique2", "repeat_interleave", "multinomial"),
        "linalg_solve",
    ]
)
_ALLOCATING = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"])
_INDEXING = frozenset(["index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"])
_PUTTING = _INDEXING - {"index", "_unsafe_index"}
# Elsewhere a tensor of the host without dimensions is taken for the number that it holds.
_WITHOUT_NUMBERS = frozenset(
    [
        *("gather", "scatter", "scatter_", "index_select", "index_copy", "index_copy_", "embedding", "cat"),
        *("mm", "addmm", "bmm", "copy_"),
    ]
)


# Results of at most so many numbers are ones, so that the host gets something to read.
_MOST_KNOWN = 65_536


@dataclass(frozen=True)
class Operator:
    """Facts about `aten`, one of ATen's operators.

    name: without its overload: `aten.add.Tensor` is an `add`.
    is_view: whether what it returns shares memory with what it is given, unchanged.
    launches: whether it runs a kernel.
    in_place: whether it writes into its first argument.
    run: itself, or what a CPU can compute of it.
    """

    aten: Any
    name: str
    is_view: bool
    launches: bool
    in_place: bool
    run: Callable[..., Any]


@functools.cache
def operator_of(aten: Any) -> Operator:
    """The facts about one of ATen's operators."""
    name = str(aten.overloadpacket.__name__)
    aliases = [returned.alias_info for returned in aten._schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return Operator(
        aten=aten,
        name=name,
        is_view=is_view,
        launches=not is_view and name not in _ALLOCATING,
        in_place=aten._schema.is_mutable,
        run=functools.partial(_histc, aten) if name == "histc" else aten,
    )


def waits(operator: Operator, args: Sequence[Any]) -> bool:
    """Whether the host waits for the device's numbers."""
    name = operator.name
    if name in _INDEXING and any(index is not None and index.dtype is torch.bool for index in args[1]):
        # One boolean index with one value is masked_fill.
        return not (name in _PUTTING and len(args[1]) == 1 and args[2].numel() == 1)
    return name in _WAITING


def is_index(operator: Operator, tensor: Tensor, args: Sequence[Any]) -> bool:
    """Whether a tensor of the host is an index, which CUDA copies to the device first."""
    return operator.name in _INDEXING and any(tensor is index for index in args[1])


def is_number(operator: Operator, tensor: Tensor) -> bool:
    """Whether CUDA takes a tensor of the host for the number that it holds."""
    return tensor.dim() == 0 and operator.name not in _WITHOUT_NUMBERS


def _histc(aten: Any, values: Tensor, *args: Any, **named: Any) -> Tensor:
    """Of integers, too, which a CPU does not count."""
    return aten(values.float(), *args, **named).to(values.dtype)


def run_unknown(operator: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operator makes of tensors of which some have no numbers: shapes, and ones where the result is small."""
    if operator.in_place and not args[0].is_meta:
        return operator.run(*mapped(args, _known), **mapped(kwargs, _known))
    made = operator.run(*mapped(args, _without_numbers), **mapped(kwargs, _without_numbers))
    if operator.is_view or operator.in_place:
        return made
    return mapped(made, lambda tensor: _known(tensor) if tensor.numel() <= _MOST_KNOWN else tensor)


def _known(tensor: Tensor) -> Tensor:
    return torch.ones(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor


def _without_numbers(tensor: Tensor) -> Tensor:
    # Numbers, which have no dimension, stay: operators read them.
    return tensor.to("meta") if tensor.dim() else tensor
