"""How far logits may be apart that are the same but for rounding."""

import torch
from torch import Tensor


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding in float32, which grows with the logits and differs between makes of CPU."""
    torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)
