"""What is known of ATen's operators on CUDA: which wait, which launch nothing, which write in no fixed order."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
        *("mm", "addmm", "bmm"),
    ]
)


@dataclass(frozen=True)
class Operator:
    """Facts about `aten`, one of ATen's operators.

    name: without its overload: `aten.add.Tensor` is an `add`.
    is_view: whether what it returns shares memory with what it is given, unchanged.
    launches: whether it runs a kernel.
    in_place: whether it writes into its first argument.
    run: itself, or the same in another order of writing.
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
        run=functools.partial(_histc, aten) if name == "histc" else _in_other_order(name, aten),
    )


def waits(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for the device's numbers."""
    name = operator.name
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
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


def _in_other_order(name: str, aten: Any) -> Callable[..., Any]:
    """The operator; one that writes at indices does so from the last to the first.

    Where an index comes twice, CUDA leaves either value. A CPU leaves the last one, and this the first, so that answers
    which depend on it differ.
    """
    if name in ("index_copy", "index_copy_"):
        return functools.partial(_index_copy, aten)
    if name in ("scatter", "scatter_"):
        return functools.partial(_scatter, aten)
    if name in _PUTTING:
        return functools.partial(_index_put, aten)
    return aten


def _histc(aten: Any, values: Tensor, *args: Any, **named: Any) -> Tensor:
    """Of integers, too, which a CPU does not count."""
    return aten(values.float(), *args, **named).to(values.dtype)


def _index_copy(aten: Any, target: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return aten(target, dim, index.flip(0), source.flip(dim))


def _scatter(aten: Any, target: Tensor, dim: int, index: Tensor, source: Any, **named: Any) -> Tensor:
    if isinstance(source, Tensor) and index.dim():
        within = tuple(slice(n) for n in index.shape)
        index, source = index.flip(dim), source[within].flip(dim)
    return aten(target, dim, index, source, **named)


def _index_put(
    aten: Any, target: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *rest: Any
) -> Tensor:
    given = [index for index in indices if index is not None]
    if any(index.dtype is torch.bool for index in given) or not values.dim():
        return aten(target, indices, values, accumulate, *rest)
    together = torch.broadcast_tensors(*given)
    places = [n for n, index in enumerate(indices) if index is not None]
    # Their dimensions stand where the first index stands, or first where other dimensions are between them.
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    untouched = [size for n, size in enumerate(target.shape) if n not in places]
    shape = [*untouched[:first], *together[0].shape, *untouched[first:]]
    flipped = iter([index.flip(tuple(range(index.dim()))) for index in together])
    values = values.expand(shape).flip(tuple(range(first, first + together[0].dim())))
    reversed_indices = [None if index is None else next(flipped) for index in indices]
    return aten(target, reversed_indices, values, accumulate, *rest)
