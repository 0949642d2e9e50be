"""Scores without masks in the continuation: of models that are causal too, and of models whose noise is random tokens.

A model that is causal outside the block that it denoises (Nemotron-Labs-Diffusion) has exact log-likelihoods. Of a
model whose noise is random tokens (DiffusionGemma), a denoising step over noisy slots is read: a read is the mean of
log p(token) over draws of noise, summed over the slots. It ranks answers, but is neither a likelihood nor a bound of
one, as each slot is read without knowing the other slots' tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mdlm_lm_eval.decoding.candidates import slices_of
from mdlm_lm_eval.decoding.canvas import seed_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length, chunks
from mdlm_lm_eval.likelihood.scored_passes import Likelihood, Term
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows, sort_key_of
from mdlm_lm_eval.options import LikelihoodOptions


def score_causally(denoiser: Denoiser, requests: Sequence[LikelihoodRequest], batch_size: int) -> list[Likelihood]:
    """The score of every request, as HFLM computes it; it is greedy if each token is the likeliest.

    The mask is a token like any other here. Raises NonFiniteLogitsError.
    """
    lengths = [len(request.context_ids) + len(request.continuation_ids) for request in requests]
    longest_first = sorted(range(len(requests)), key=lambda n: sort_key_of(requests[n].prefix, lengths[n]))
    scores: dict[int, Likelihood] = {}
    for batch in chunks(longest_first, batch_size):
        log_probs, is_likeliest = _of_continuations(denoiser, [requests[index] for index in batch])
        counts = [len(requests[index].continuation_ids) for index in batch]
        for index, of_one, greedy in zip(batch, log_probs.split(counts), is_likeliest.split(counts), strict=True):
            if not of_one.isfinite().all():
                raise NonFiniteLogitsError(index)
            terms = [Term(n, 1.0, log_prob) for n, log_prob in enumerate(of_one.tolist())]
            scores[index] = Likelihood(float(of_one.double().sum()), bool(greedy.all()), terms=terms)
    return [scores[index] for index in range(len(requests))]


def _of_continuations(denoiser: Denoiser, requests: Sequence[LikelihoodRequest]) -> Tensor:
    """Log-probabilities of all continuations' tokens, and 1 for each that is the likeliest: [2, N] on the host."""
    prefixes, device = [request.prefix for request in requests], denoiser.device
    texts = [request.context_ids + request.continuation_ids for request in requests]
    lengths = torch.tensor(list(map(len, texts)))  # [B]
    shared = torch.tensor([len(prefix or ()) for prefix in prefixes])
    longest, width = int(lengths.max()), int((lengths - shared).max())
    rows = [torch.tensor(text[len(prefix or ()) :]) for text, prefix in zip(texts, prefixes, strict=True)]
    ids = pad_sequence(rows, batch_first=True, padding_value=denoiser.pad_token_id)  # [B, W]
    positions = shared[:, None] + torch.arange(width)
    columns = positions.where(positions < lengths[:, None], longest)  # a column that no row sees
    cache: CanvasCache | None = None
    if shared.any():
        cache = CanvasCache(denoiser.model.config.num_hidden_layers, longest + 1, len(requests))
        begin_rows(cache, prefixes)
    n_context = torch.tensor([len(request.context_ids) for request in requests])
    is_scored = (positions >= n_context[:, None]) & (positions < lengths[:, None])
    scored = is_scored.flatten().nonzero().squeeze(1)  # [N]
    logits = denoiser.window_logits(
        to_device(ids, device),
        to_device(columns, device),
        to_device(torch.arange(longest) <= columns[..., None], device),
        to_device(scored - 1, device),
        cache=cache,
        n_seen=None if cache is None else longest,
    )
    truth = to_device(ids.flatten()[scored], device)
    parts = []
    for part in slices_of(len(truth), logits):
        of_truth = logits[part].float().log_softmax(-1).gather(1, truth[part, None]).squeeze(1)
        parts.append(torch.stack([of_truth, (logits[part].argmax(-1) == truth[part]).float()]))
    return torch.cat(parts, 1).cpu()  # the only wait for the device


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
        for log_probs in denoiser.noisy_reads(
            canvas, slots, n_read=n, noise_num=options.noise_num, seed=seed, batch_size=batch_size
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
