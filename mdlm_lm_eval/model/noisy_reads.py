"""Reads of a model whose noise is random tokens: one denoising step over a canvas with noisy slots."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.model.denoiser import Denoiser


def draws(
    denoiser: Denoiser,
    token_ids: Sequence[int],
    slots: Sequence[int],
    *,
    n_read: int,
    noise_num: int,
    seed: int,
    batch_size: int,
) -> Iterator[Tensor]:
    """Yields log-probabilities [k, n_read, V] float32 at the first `n_read` slots, for k draws of noise at a time.

    The tokens before the first slot are the prompt; the rest is the canvas, whose slots are filled with random tokens
    `noise_num` times. A pass runs at most `batch_size` draws.
    """
    assert denoiser.read is not None
    start, noise = slots[0], torch.Generator().manual_seed(seed)
    canvases = torch.tensor(token_ids[start:]).repeat(noise_num, 1)  # [K, T]
    positions = torch.tensor(slots) - start
    canvases[:, positions] = torch.randint(denoiser.vocab_size, (noise_num, len(slots)), generator=noise)
    batches = canvases.split(batch_size)
    passes = denoiser.read(denoiser.model, list(token_ids[:start]), batches, positions[:n_read])
    for batch, logits in zip(batches, passes, strict=True):
        denoiser.forward_passes += 1
        denoiser.canvas_count += len(batch)
        yield logits.float().log_softmax(-1)
