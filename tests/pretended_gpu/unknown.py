"""Operators on tensors without numbers: models too large to hold lie on the meta device."""

from typing import Any

import torch
from torch import Tensor

from tests.pretended_gpu.operators import Operator
from tests.pretended_gpu.tensors import mapped

# Results of at most so many numbers are ones, so that the host gets something to read.
_MOST_KNOWN = 65_536


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
