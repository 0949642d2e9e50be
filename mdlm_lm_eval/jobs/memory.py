"""How many rows fit into a GPU's memory, from an estimate of a row's peak memory in bytes."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from mdlm_lm_eval.jobs.shared import Context
from mdlm_lm_eval.model import devices
from mdlm_lm_eval.model.prefix_store import MOST_RUN

# The most tokens in a pass on a GPU; the time per token is the same in larger passes.
_MOST_TOKENS = 65_536
# The usable share of free memory; the rest is lost between blocks of the allocator.
_USABLE = 0.9
# Memory that does not depend on the rows: float32 slices of logits and of values computed from them, workspaces of
# matrix multiplications, and the passes that are kept as CUDA graphs.
_FIXED_BYTES = 9 * 2**29


@dataclass(frozen=True, kw_only=True)
class RowSize:
    """The sizes of a row of a batch.

    length: tokens of its canvas, of which `n_logits` are predicted in a pass.
    n_run: tokens of its longest pass: by default all of them, but its prompt if finished blocks are remembered.
    n_kept: distributions that are kept from pass to pass.
    is_cached: whether keys and values are remembered. is_ahead: whether prompts are run ahead, for which half as many
        rows more keep keys and values.
    is_guided: whether the row also runs without its prompt, for classifier-free guidance.
    """

    length: int
    n_logits: int
    n_run: int | None = None
    n_kept: int = 0
    is_cached: bool = False
    is_ahead: bool = False
    is_guided: bool = False

    def remembered(self, config: PreTrainedConfig, itemsize: int) -> int:
        """Bytes of keys and values in all layers, and of the float32 distributions that are kept."""
        text, rows = config.get_text_config(), 2 if self.is_guided else 1
        tensors = (3 if self.is_ahead else 2) * self.is_cached
        n_numbers = 0  # per token in the keys of all layers
        for layer in text.per_layer_config:
            heads = layer.num_attention_heads
            size = getattr(layer, "head_dim", None) or layer.hidden_size // heads
            n_numbers += int((getattr(layer, "num_key_value_heads", None) or heads) * size)
        of_layers = rows * self.length * tensors * n_numbers * itemsize
        return of_layers + self.n_kept * text.vocab_size * torch.float32.itemsize

    def total(self, config: PreTrainedConfig, itemsize: int) -> int:
        """Bytes that the row takes at the peak of a pass, with numbers of `itemsize` bytes.

        Without gradients, only one layer's activations exist at a time, and they are gone when logits are computed. A
        gated layer holds its input, residual and output, and three tensors of its inner size. A mixture of experts
        holds six tensors of the hidden size for each of a token's experts: inputs, outputs, and in float32 the weighted
        and the ordered outputs. Guidance holds the logits of both canvases, their difference and its multiple.
        Attention masks of a canvas's length squared are left out.
        """
        text, rows = config.get_text_config(), 2 if self.is_guided else 1
        inner = 3 * text.intermediate_size
        if (experts := getattr(text, "num_experts_per_tok", None)) is not None:
            inner = max(inner, experts * 6 * text.hidden_size)
        activations = rows * (self.n_run or self.length) * (inner + 4 * text.hidden_size) * itemsize
        logits = rows**2 * self.n_logits * text.vocab_size * itemsize
        return int(max(activations, logits) + self.remembered(config, itemsize))


def rows_that_fit(row_bytes: int, free_bytes: int, *, most: int) -> int:
    """The largest power of two of rows, from 1 to `most`, that fits into `free_bytes` beside the loaded weights."""
    n_rows = int((free_bytes * _USABLE - _FIXED_BYTES) // row_bytes)
    return max(1, min(most, 1 << (n_rows.bit_length() - 1) if n_rows > 0 else 1))


def most_rows(context: Context, row: RowSize, *, n_shared: int) -> int:
    """Returns how many rows of this size fit into a GPU beside the weights.

    n_shared: the number of tokens in shared prefixes, whose keys and values are stored there, too.
    """
    denoiser, most = context.denoiser, context.batches.most
    free = devices.free_bytes(denoiser.device)
    if free is None or denoiser.generate is not None:
        return most
    config, itemsize = denoiser.model.config, denoiser.dtype.itemsize
    if n_shared:
        n_run = min(n_shared, MOST_RUN)
        stored = RowSize(length=n_shared, n_run=n_run, n_logits=0, is_cached=True, is_guided=row.is_guided)
        free -= stored.total(config, itemsize)
    most = most if row.is_cached else max(1, min(most, _MOST_TOKENS // row.length))
    return rows_that_fit(row.total(config, itemsize), free, most=most)
