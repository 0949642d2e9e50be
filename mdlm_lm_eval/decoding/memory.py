"""How many rows fit into a GPU's memory: a budget of bytes, from what a row of a model takes at its peak."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

# Of what is free: the rest is lost between blocks of the allocator.
_USABLE = 0.9
# Whatever the rows: float32 slices of logits and what is computed from them, workspaces of matrix multiplications, and
# the passes of at most 8,192 tokens that are kept as CUDA graphs.
_FIXED_BYTES = 9 * 2**29


@dataclass(frozen=True)
class RowMemory:
    """Bytes that one row adds to the weights at the peak of a pass.

    activations: of one layer, which is all that exists at a time without gradients.
    remembered: keys and values of all layers, and what a sampler compares passes by.
    logits: at the positions that are predicted, when the layers' activations are gone.
    """

    activations: int
    remembered: int
    logits: int

    @property
    def total(self) -> int:
        """Bytes at once."""
        return max(self.activations, self.logits) + self.remembered


def row_memory(
    config: PreTrainedConfig,
    *,
    length: int,
    n_logits: int,
    itemsize: int,
    n_run: int | None = None,
    n_kept: int = 0,
    is_cached: bool = False,
    is_ahead: bool = False,
    guided: bool = False,
) -> RowMemory:
    """Of a canvas of `length` tokens with logits at `n_logits` of them, in numbers of `itemsize` bytes.

    The longest pass runs `n_run` tokens of a row, by default all of them; where finished blocks are remembered, its
    prompt. `n_kept` distributions are kept from pass to pass in float32. A gated layer holds its input, residual and
    output with three tensors of its inner size; a mixture's six of the hidden size for each of a token's experts:
    inputs, outputs, and in float32 the weighted and the ordered ones. Guidance holds the logits of both canvases, their
    difference and its multiple. With `is_ahead`, prompts of half as many rows more are remembered. Masks of a canvas'
    length squared are left out.
    """
    text = config.get_text_config()
    inner = 3 * text.intermediate_size
    if (experts := getattr(text, "num_experts_per_tok", None)) is not None:
        inner = max(inner, experts * 6 * text.hidden_size)
    rows, tensors = 2 if guided else 1, (3 if is_ahead else 2) * is_cached
    return RowMemory(
        activations=rows * (n_run or length) * (inner + 4 * text.hidden_size) * itemsize,
        remembered=rows * length * tensors * sum(map(_width_of_keys, text.per_layer_config)) * itemsize
        + n_kept * text.vocab_size * torch.float32.itemsize,
        logits=rows**2 * n_logits * text.vocab_size * itemsize,
    )


def _width_of_keys(layer: PreTrainedConfig) -> int:
    """Numbers per token in a layer's keys."""
    heads = layer.num_attention_heads
    size = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    return int((getattr(layer, "num_key_value_heads", None) or heads) * size)


def rows_that_fit(row: RowMemory, free_bytes: int, *, most: int) -> int:
    """The largest power of two of rows that fits into `free_bytes`, the weights being loaded; 1 to `most`."""
    n_rows = int((free_bytes * _USABLE - _FIXED_BYTES) // row.total)
    return max(1, min(most, 1 << (n_rows.bit_length() - 1) if n_rows > 0 else 1))
