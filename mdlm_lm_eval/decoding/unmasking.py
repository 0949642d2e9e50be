"""Which token each mask would become, and in which order masks are filled."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from mdlm_lm_eval.options import DecodingOptions

# Probabilities exist in float32 for this many positions at a time: 130 MB at a vocabulary of 126,464.
_POSITIONS_PER_SLICE = 256
_LAST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Proposal:
    """For each of N masks: the token it would become, that token's probability, and its place in the order."""

    tokens: Tensor  # [N]
    confidence: Tensor  # [N] float32, probabilities
    priority: Tensor  # [N] float32, the highest is unmasked first


def propose(
    logits: Tensor,
    options: DecodingOptions,
    *,
    banned_ids: Collection[int],
    eos_ids: Collection[int],
    uniform: Tensor,
    fixed_priority: Tensor,
) -> Proposal:
    """Proposes tokens from `logits` [N, V], which may be overwritten.

    `banned_ids` are never proposed. `uniform` [N] holds one number in [0, 1) a mask, from which a token is drawn at
    `temperature` > 0; at 0 the likeliest is taken. Confidence, margin and entropy are those of the untempered
    distribution. `fixed_priority` [N] is the order where `unmasking` does not depend on the logits.
    """
    if banned_ids:
        logits[:, list(banned_ids)] = -torch.inf
    sliced = [
        _propose_slice(part.float(), options, u)
        for part, u in zip(logits.split(_POSITIONS_PER_SLICE), uniform.split(_POSITIONS_PER_SLICE), strict=True)
    ]
    tokens, confidence, priority = (torch.cat(parts) for parts in zip(*sliced, strict=True))
    if options.unmasking in ("random", "left_to_right"):
        priority = fixed_priority
    if options.eos_last:
        predicts_end = torch.zeros_like(tokens, dtype=torch.bool)
        for eos_id in eos_ids:
            predicts_end |= tokens == eos_id
        confidence = confidence.masked_fill(predicts_end, 0.0)
        priority = priority.masked_fill(predicts_end, _LAST)
    return Proposal(tokens, confidence, priority)


def _propose_slice(logits: Tensor, options: DecodingOptions, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, confidence and priority [n] from float32 logits [n, V]."""
    probabilities = logits.softmax(-1)  # [n, V]
    tokens = logits.argmax(-1) if options.temperature == 0.0 else _sample(logits, options, uniform)
    confidence = probabilities.gather(1, tokens[:, None]).squeeze(1)
    if options.unmasking == "margin":
        top = probabilities.topk(2).values
        return tokens, confidence, top[:, 0] - top[:, 1]
    if options.unmasking == "entropy":
        return tokens, confidence, -torch.special.entr(probabilities).sum(-1)
    return tokens, confidence, confidence


def _sample(logits: Tensor, options: DecodingOptions, uniform: Tensor) -> Tensor:
    """One token a row of `logits` [n, V] at temperature, within top-k and top-p, by inversion of `uniform` [n]."""
    ordered, ids = (logits / options.temperature).sort(descending=True, stable=True)
    if options.top_k is not None:
        ordered[:, options.top_k :] = -torch.inf
    cumulative = ordered.softmax(-1).cumsum(-1)  # [n, V]
    total = cumulative[:, -1]
    if options.top_p is not None:
        # The smallest set of likeliest tokens that reaches top_p: its last token is the first at or above it.
        n_kept = (cumulative < options.top_p).sum(-1).clamp_max(logits.shape[1] - 1)
        total = cumulative.gather(1, n_kept[:, None]).squeeze(1)
    index = torch.searchsorted(cumulative, (uniform * total)[:, None], right=True).clamp_max(logits.shape[1] - 1)
    return ids.gather(1, index).squeeze(1)
