"""Exact log-likelihoods of a model that is causal outside the block that it denoises (Nemotron-Labs-Diffusion)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import slices_of
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, chunks
from mdlm_lm_eval.likelihood.scored_passes import Likelihood, Term
from mdlm_lm_eval.model.denoiser import Denoiser, NonFiniteLogitsError
from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import begin_rows, sort_key_of


def score_causally(denoiser: Denoiser, requests: Sequence[LikelihoodRequest], batch_size: int) -> list[Likelihood]:
    """The score of every request, as HFLM computes it; it is greedy if each token is the likeliest.

    The mask is a token like any other here. Raises NonFiniteLogitsError.
    """
    texts = [request.context_ids + request.continuation_ids for request in requests]
    longest_first = sorted(range(len(texts)), key=lambda n: sort_key_of(requests[n].prefix, len(texts[n])))
    scores: dict[int, Likelihood] = {}
    for batch in chunks(longest_first, batch_size):
        prefixes = [requests[index].prefix for index in batch]
        lengths = torch.tensor([len(texts[index]) for index in batch])  # [B]
        shared = torch.tensor([len(prefix or ()) for prefix in prefixes])
        longest, width = int(lengths.max()), int((lengths - shared).max())
        rows = [texts[index][len(prefix or ()) :] for index, prefix in zip(batch, prefixes, strict=True)]
        ids = torch.tensor([row + [denoiser.pad_token_id] * (width - len(row)) for row in rows])
        columns = shared[:, None] + torch.arange(width)  # [B, W]
        columns = columns.where(columns < lengths[:, None], longest)  # a column that no row sees
        cache: CanvasCache | None = None
        if shared.any():
            cache = CanvasCache(denoiser.model.config.num_hidden_layers, longest + 1, len(batch))
            begin_rows(cache, prefixes)
        counts = [len(requests[index].continuation_ids) for index in batch]
        ends = lengths - shared + torch.arange(len(batch)) * width
        scored = torch.cat([torch.arange(int(end) - n, int(end)) for end, n in zip(ends, counts, strict=True)])  # [N]
        device = denoiser.device
        logits = denoiser.window_logits(
            to_device(ids, device),
            to_device(columns, device),
            to_device(torch.arange(longest) <= columns[..., None], device),
            to_device(scored - 1, device),
            cache=cache,
            n_seen=None if cache is None else longest,
        )
        truth = to_device(ids.flatten()[scored], device)
        parts = [_of_truth(logits[part], truth[part]) for part in slices_of(len(truth), logits)]
        log_probs, is_likeliest = torch.cat(parts, 1).cpu()  # the only wait for the device
        for index, of_one, greedy in zip(batch, log_probs.split(counts), is_likeliest.split(counts), strict=True):
            if not of_one.isfinite().all():
                raise NonFiniteLogitsError(index)
            terms = [Term(n, 1.0, log_prob) for n, log_prob in enumerate(of_one.tolist())]
            scores[index] = Likelihood(float(of_one.double().sum()), bool(greedy.all()), terms=terms)
    return [scores[index] for index in range(len(requests))]


def _of_truth(logits: Tensor, truth: Tensor) -> Tensor:
    """The log-probabilities of the true tokens [n] by logits [n, V], and 1 for each that is the likeliest: [2, n]."""
    log_probs = logits.float().log_softmax(-1).gather(1, truth[:, None]).squeeze(1)
    return torch.stack([log_probs, (logits.argmax(-1) == truth).float()])
