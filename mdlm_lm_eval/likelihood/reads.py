"""Reads of a model whose noise is random tokens (DiffusionGemma): one denoising step over a canvas with noisy slots.

What stands before the first slot is the prompt; the rest is the canvas, its slots filled at random `noise_num` times.
A read is the mean over these draws of log p(token), summed over the slots. It ranks answers; it is neither a
likelihood, as the slots are not read given each other, nor a bound of one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import Canvas, Completion, RowCost, seed_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.options import DecodingOptions, LikelihoodOptions, OptionError


def score_by_reads(
    denoiser: Denoiser, requests: Sequence[LikelihoodRequest], options: LikelihoodOptions, batch_size: int
) -> list[tuple[float, bool, float | None]]:
    """Of every request the read of its continuation in nats, whether each token has the highest mean, and the read's
    standard error (None of one draw).

    Answers to one context are read off the same draws as far as they are equally long. Raises NonFiniteLogitsError.
    """
    alike: dict[tuple[tuple[int, ...], int, tuple[int, ...]], list[int]] = {}
    for index, request in enumerate(requests):
        n = len(request.continuation_ids)
        alike.setdefault((tuple(request.context_ids), n, request.after_ids), []).append(index)
    found: dict[int, tuple[float, bool, float | None]] = {}
    for (context, n, after_ids), indices in alike.items():
        n_slots = answer_length(requests[indices[0]], options) - len(after_ids)
        seed = seed_of(f"{options.seed} {context}")
        canvas = (*context, *[denoiser.pad_token_id] * n_slots, *after_ids)
        slots = range(len(context), len(context) + n_slots)
        truth = torch.tensor([requests[index].continuation_ids for index in indices], device=denoiser.device)  # [A, n]
        reads: list[Tensor] = []
        total = torch.zeros((), device=denoiser.device)
        for log_probs in _draws(denoiser, canvas, slots, n, options.noise_num, seed, batch_size):
            total = total + log_probs.sum(0)  # [n, V]
            reads.append(log_probs[:, torch.arange(n), truth].sum(-1))  # [k, A]
        of_draws = torch.cat(reads).double().cpu()  # [K, A]
        likeliest = (total.argmax(-1) == truth).all(-1).tolist()
        for index, draws, greedy in zip(indices, of_draws.unbind(1), likeliest, strict=True):
            if not draws.isfinite().all():
                raise NonFiniteLogitsError(index)
            error = float(draws.std() / len(draws) ** 0.5) if len(draws) > 1 else None
            found[index] = (float(draws.mean()), greedy, error)
    return [found[index] for index in range(len(requests))]


def fill_by_reads(
    denoiser: Denoiser, canvas: Canvas, options: DecodingOptions, batch_size: int, *, index: int = 0
) -> Completion:
    """The tokens of highest mean in the returned slots. Raises NonFiniteLogitsError, which names the `index`."""
    if canvas.slots[0] == 0:
        raise OptionError("infill=true needs a text before the first slot, which the model's encoder reads")
    n, total = canvas.n_returned, torch.zeros((), device=denoiser.device)
    for log_probs in _draws(denoiser, canvas.token_ids, canvas.slots, n, options.noise_num, canvas.seed, batch_size):
        total = total + log_probs.sum(0)  # [n, V]
    if not total.isfinite().all():
        raise NonFiniteLogitsError(index)
    return Completion(total.argmax(-1).tolist(), RowCost(forward_passes=options.noise_num, steps=options.noise_num), n)


def _draws(
    denoiser: Denoiser,
    token_ids: Sequence[int],
    slots: Sequence[int],
    n_read: int,
    noise_num: int,
    seed: int,
    batch_size: int,
) -> Iterator[Tensor]:
    """Log-probabilities [k, n_read, V] at the first slots of a canvas, for k draws of all its slots at a time."""
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
