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
    end_ids: Collection[int],
    uniform: Tensor,
    fixed_priority: Tensor,
) -> Proposal:
    """Proposes tokens from `logits` [N, V], which may be overwritten.

    `banned_ids` are never proposed; with `eos_last`, masks that would become one of `end_ids` come last. `uniform` [N]
    holds one number in [0, 1) a mask, from which a token is drawn at `temperature` > 0; at 0 the likeliest is taken.
    Confidence, margin and entropy are those of the plain distribution, as in LLaDA's sampler, unless `top_p` or `top_k`
    is set: then of the tempered and filtered one, as in Dream's.
    `fixed_priority` [N] is the order where `unmasking` does not depend on the logits.
    """
    for banned_id in banned_ids:  # one at a time: a list of indices would be copied to the device
        logits[:, banned_id] = -torch.inf
    sliced = [
        _propose_slice(part.float(), options, u)
        for part, u in zip(logits.split(_POSITIONS_PER_SLICE), uniform.split(_POSITIONS_PER_SLICE), strict=True)
    ]
    tokens, confidence, priority = (torch.cat(parts) for parts in zip(*sliced, strict=True))
    if options.unmasking in ("random", "left_to_right"):
        priority = fixed_priority
    if options.eos_last:
        predicts_end = torch.zeros_like(tokens, dtype=torch.bool)
        for end_id in end_ids:
            predicts_end |= tokens == end_id
        confidence = confidence.masked_fill(predicts_end, 0.0)
        priority = priority.masked_fill(predicts_end, _LAST)
    return Proposal(tokens, confidence, priority)


def _propose_slice(logits: Tensor, options: DecodingOptions, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, confidence and priority [n] from float32 logits [n, V]."""
    filtered = options.top_p is not None or options.top_k is not None
    tempered = logits if options.temperature == 0.0 else logits / options.temperature
    if filtered:
        tempered = _filter(tempered, options)
    probabilities = (tempered if filtered else logits).softmax(-1)  # [n, V]
    tokens = logits.argmax(-1) if options.temperature == 0.0 else _sample(tempered, uniform)
    confidence = probabilities.gather(1, tokens[:, None]).squeeze(1)
    if options.unmasking == "margin":
        top = probabilities.topk(2).values
        return tokens, confidence, top[:, 0] - top[:, 1]
    if options.unmasking == "entropy":
        return tokens, confidence, -torch.special.entr(probabilities).sum(-1)
    return tokens, confidence, confidence


def _filter(logits: Tensor, options: DecodingOptions) -> Tensor:
    """`logits` [n, V] with -inf outside the `top_k` likeliest tokens and the likeliest ones that reach `top_p`."""
    ordered, ids = logits.sort(descending=True, stable=True)
    dropped = torch.zeros_like(ordered, dtype=torch.bool)
    if options.top_p is not None:
        probabilities = ordered.softmax(-1)
        dropped = probabilities.cumsum(-1) - probabilities > options.top_p
    if options.top_k is not None:
        dropped[:, options.top_k :] = True
    return logits.masked_fill(torch.zeros_like(dropped).scatter(1, ids, dropped), -torch.inf)


def _sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """One token a row of `logits` [n, V], distributed as their softmax, by inversion of `uniform` [n].

    One number a mask draws from the same distribution as LLaDA's Gumbel noise, which takes V of them.
    """
    cumulative = logits.softmax(-1).cumsum(-1)  # [n, V]
    # The factor keeps rounding from reaching past the last token whose probability is not zero.
    reached = uniform * cumulative[:, -1] * (1 - 2**-20)
    return torch.searchsorted(cumulative, reached[:, None], right=True).squeeze(1)
