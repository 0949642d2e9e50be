"""Scores of a model whose noise is random tokens (DiffusionGemma), from one denoising step over noisy slots.

A read is the mean of log p(token) over draws of noise, summed over the slots. It ranks answers, but is neither a
likelihood nor a bound of one, as each slot is read without knowing the other slots' tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.canvas import seed_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.likelihood.scored_passes import Likelihood
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.noisy_reads import draws
from mdlm_lm_eval.options import LikelihoodOptions


def score_by_reads(
    denoiser: Denoiser, requests: Sequence[LikelihoodRequest], options: LikelihoodOptions, batch_size: int
) -> list[Likelihood]:
    """The read of every request's continuation in nats; it is greedy if each token has the highest mean.

    The standard error is None for a single draw. Equally long answers to one context use the same draws. Raises
    NonFiniteLogitsError.
    """
    alike: dict[tuple[tuple[int, ...], int, tuple[int, ...]], list[int]] = {}
    for index, request in enumerate(requests):
        n = len(request.continuation_ids)
        alike.setdefault((tuple(request.context_ids), n, request.after_ids), []).append(index)
    found: dict[int, Likelihood] = {}
    for (context, n, after_ids), indices in alike.items():
        n_slots = answer_length(requests[indices[0]], options) - len(after_ids)
        seed = seed_of(f"{options.seed} {context}")
        canvas = (*context, *[denoiser.pad_token_id] * n_slots, *after_ids)
        slots = range(len(context), len(context) + n_slots)
        truth = torch.tensor([requests[index].continuation_ids for index in indices], device=denoiser.device)  # [A, n]
        reads: list[Tensor] = []
        total = torch.zeros((), device=denoiser.device)
        for log_probs in draws(
            denoiser, canvas, slots, n_read=n, noise_num=options.noise_num, seed=seed, batch_size=batch_size
        ):
            total = total + log_probs.sum(0)  # [n, V]
            reads.append(log_probs[:, torch.arange(n), truth].sum(-1))  # [k, A]
        of_draws = torch.cat(reads).double().cpu()  # [K, A]
        likeliest = (total.argmax(-1) == truth).all(-1).tolist()
        for index, values, greedy in zip(indices, of_draws.unbind(1), likeliest, strict=True):
            if not values.isfinite().all():
                raise NonFiniteLogitsError(index)
            error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else None
            found[index] = Likelihood(float(values.mean()), greedy, error)
    return [found[index] for index in range(len(requests))]
