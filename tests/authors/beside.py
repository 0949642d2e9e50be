"""What functions and networks import from beside them, by its name or relative to them."""

import random

import torch

FACTOR = 3


def answer(n):
    return [random.randrange(10, 40), *torch.randint(10, 40, (n - 1,)).tolist()]


def bidirectional(config):
    """The config with bidirectional attention."""
    config.is_causal = False
    return config
