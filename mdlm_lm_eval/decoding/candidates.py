"""Proposals for each mask: the token that it would become, that token's probability, and the mask's priority."""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import to_device
from mdlm_lm_eval.options import DecodingOptions
from mdlm_lm_eval.registry import UNMASKING

# Float32's lowest number: below every other priority, and above the -inf of positions that are no candidates.
_LAST = -(2 - 2**-23) * 2.0**127
# Probabilities exist in float32 for this many positions at a time: few enough for a CPU's cache where the vocabulary is
# small; on a GPU as many as make up so many numbers, as each slice launches its own kernels.
_POSITIONS_PER_SLICE, _NUMBERS_PER_SLICE, _NUMBERS_PER_SLICE_ON_GPU = 256, 2**19, 2**27


class WhereMasked(NamedTuple):
    """Facts of N masks for the rules that read them.

    slot_numbers: [N], a mask's number among the slots of its row, counted from the left.
    block_offsets: [N], its number among the slots of its block.
    random_numbers: [N] float32 in [0, 1), drawn once for each mask of a row.
    uniform: [N] float32 in [0, 1), from which a token is drawn at `temperature` > 0.
    """

    slot_numbers: Tensor | None = None
    block_offsets: Tensor | None = None
    random_numbers: Tensor | None = None
    uniform: Tensor | None = None


@dataclass
class Candidates:
    """N masks of one or more rows.

    logits: [N, V] of the distribution that tokens are drawn from: float32, or at temperature 0 the model's own.
    plain_logits: [N, V] of the distribution that confidences are read from. It has temperature 1, as in LLaDA's
        sampler, unless `top_p` or `top_k` is set. With `eos_last`, both exclude the tokens that end an answer.
    tokens: [N], the token that each mask would become.
    last_ids: with `eos_last`, the tokens that end an answer; else empty.
    token_frequencies: [V], the share of each token in a background text; None without one.
    slot_numbers, block_offsets, random_numbers: as in `WhereMasked`.
    """

    logits: Tensor
    plain_logits: Tensor
    tokens: Tensor
    last_ids: Collection[int]
    options: DecodingOptions
    token_frequencies: Tensor | None
    slot_numbers: Any
    block_offsets: Any
    random_numbers: Any

    def with_last(self, priorities: Tensor) -> Tensor:
        """These priorities [N], with `eos_last` the lowest ones for masks that would become an end of the answer."""
        found = torch.zeros_like(self.tokens, dtype=torch.bool)
        for last_id in self.last_ids:
            found |= (self.tokens == last_id) & ~self.confidence.isnan()  # argmax of NaN gives an arbitrary token
        return priorities.masked_fill(found, _LAST)

    @cached_property
    def probabilities(self) -> Tensor:
        """[N, V] float32, the distribution that tokens are drawn from."""
        return self.logits.softmax(-1, dtype=torch.float32)

    @cached_property
    def plain_probabilities(self) -> Tensor:
        """[N, V] float32, the distribution that confidences are read from."""
        if self.plain_logits is self.logits:
            return self.probabilities
        return self.plain_logits.softmax(-1, dtype=torch.float32)

    @cached_property
    def entropy(self) -> Tensor:
        """[N] in nats, the entropy of the distribution that tokens are drawn from; 0 log 0 counts as 0."""
        return torch.special.entr(self.probabilities).sum(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """[N], the probability p of the token that each mask would become."""
        return self.plain_probabilities.gather(1, self.tokens[:, None]).squeeze(1)

    @cached_property
    def odds(self) -> Tensor:
        """[N], -(1 - p) / p in units of 2^-53; they distinguish probabilities that float32 rounds to 1."""
        confidence, probabilities = self.confidence, self.plain_probabilities
        for name in ("plain_probabilities", "probabilities"):  # overwritten below; later readers compute new ones
            self.__dict__.pop(name, None)
        others = probabilities.scatter_(1, self.tokens[:, None], 0.0).sum(-1)
        return torch.addcdiv(_zero(others.device), others, confidence, value=-(2.0**53))  # in one kernel


@functools.lru_cache(maxsize=16)
def _zero(device: torch.device) -> Tensor:
    return to_device(torch.zeros(()), device)


class Proposals(NamedTuple):
    """For each of N masks: the token it would become, that token's probability, and its place in the order."""

    tokens: Tensor  # [N]
    confidence: Tensor  # [N] float32, probabilities; NaN if the logits are not finite
    priority: Tensor  # [N] float32; the mask of highest priority is filled first
    entropy: Tensor  # [N] float32 in nats, if it is needed


@dataclass(frozen=True)
class Proposer:
    """Proposes tokens as options say, from logits [N, V] which may be overwritten.

    `banned_ids` are never proposed. With `eos_last`, `end_ids` can be proposed, but confidences are computed without
    them: LLaDA's sampler sets their logits to -inf after it has chosen the tokens and before the softmax
    (`confidence_eos_eot_inf`). `token_frequencies` [V] are as in `Candidates`. `fused` says that one kernel on the
    device finds the likeliest tokens and their probabilities; the distribution is then computed only for rules that
    read it.
    """

    options: DecodingOptions
    banned_ids: Collection[int] = ()
    end_ids: Collection[int] = ()
    token_frequencies: Tensor | None = None
    needs_confidence: bool = True
    needs_entropy: bool = False
    fused: bool = False

    def propose(self, logits: Tensor, where: WhereMasked) -> Proposals:
        """Proposals for each mask: at temperature 0, or without `where.uniform`, the likeliest token."""
        parts = [
            self._propose(logits[part], WhereMasked(*(None if each is None else each[part] for each in where)))
            for part in slices_of(len(logits), logits)
        ]
        return parts[0] if len(parts) == 1 else Proposals(*map(torch.cat, zip(*parts, strict=True)))

    def _propose(self, logits: Tensor, where: WhereMasked) -> Proposals:
        options = self.options
        is_filtered, is_drawn = options.top_p is not None or options.top_k is not None, options.temperature != 0.0
        exclude(logits, self.banned_ids)
        drawn_from = _drawn_from(logits, options)  # [n, V]
        uniform, last_ids = where.uniform if is_drawn else None, self.end_ids if options.eos_last else ()
        is_fused = self.fused and not (is_drawn or is_filtered or last_ids)
        tokens, others = _likeliest(logits, is_fused) if uniform is None else (_sample(drawn_from, uniform), None)
        if last_ids:
            logits = logits.clone()
            exclude(logits, last_ids)
            drawn_from = _drawn_from(logits, options)
        plain = drawn_from if is_filtered else logits
        candidates = Candidates(drawn_from, plain, tokens, last_ids, options, self.token_frequencies, *where[:3])
        if others is not None:
            candidates.confidence, candidates.odds = 1 / (1 + others), others * -(2.0**53)
        entropy = candidates.entropy if self.needs_entropy else None
        priority = UNMASKING.get(options.unmasking).rank(candidates)
        if last_ids or is_drawn:  # the token may have probability 0, whose priority would be infinite
            priority = priority.clamp(min=_LAST)
        confidence = candidates.confidence if self.needs_confidence else priority
        return Proposals(tokens, confidence, priority, confidence if entropy is None else entropy)


def exclude(logits: Tensor, ids: Collection[int]) -> None:
    """Sets the logits [N, V] of these tokens to -inf, one by one: a list of indices would be copied to the device."""
    for id in ids:
        logits.select(1, id).fill_(-torch.inf)


def slices_of(n: int, logits: Tensor) -> list[slice]:
    """Slices of n positions, at least one, small enough to hold probabilities of `logits` [..., V] in float32."""
    most = _NUMBERS_PER_SLICE if logits.device.type == "cpu" else _NUMBERS_PER_SLICE_ON_GPU
    size = max(_POSITIONS_PER_SLICE, most // logits.shape[-1])
    return [slice(start, start + size) for start in range(0, max(1, n), size)]


def _likeliest(logits: Tensor, is_fused: bool) -> tuple[Tensor, Tensor | None]:
    """The token with the largest logit in each row [n], the first of equals.

    With `is_fused` also (1 - p) / p [n] of its probability p.
    """
    if is_fused:
        from mdlm_lm_eval.model.kernels import surest  # needs Triton

        return surest(logits)
    if logits.device.type == "cpu":  # where numpy finds it ten times as fast as torch
        return torch.from_numpy(logits.float().numpy().argmax(1)), None
    return logits.argmax(-1), None


def _drawn_from(logits: Tensor, options: DecodingOptions) -> Tensor:
    """Logits [n, V] of the distribution that tokens are drawn from."""
    if options.temperature != 0.0:
        logits = logits.float() / options.temperature
    if options.top_p is not None or options.top_k is not None:
        logits = _filter(logits.float(), options)
    return logits


def _filter(logits: Tensor, options: DecodingOptions) -> Tensor:
    """`logits` [n, V], -inf for all but the `top_k` likeliest tokens, and but the likeliest ones that reach `top_p`."""
    ordered, ids = logits.sort(descending=True, stable=True)
    dropped = torch.zeros_like(ordered, dtype=torch.bool)
    if options.top_p is not None:
        probabilities = ordered.softmax(-1)
        dropped = probabilities.cumsum(-1) - probabilities > options.top_p
    if options.top_k is not None:
        dropped[:, options.top_k :] = True
    return logits.masked_fill(torch.zeros_like(dropped).scatter(1, ids, dropped), -torch.inf)


def _sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """One token for each row of `logits` [n, V], drawn from their softmax by inversion with `uniform` [n].

    This needs one random number for each mask. LLaDA's Gumbel noise draws from the same distribution with V numbers.
    """
    cumulative = logits.softmax(-1).cumsum(-1)  # [n, V]
    # The factor keeps rounding from reaching past the last token whose probability is not zero.
    reached = uniform * cumulative[:, -1] * (1 - 2**-20)
    # A row of NaN gets the last token; its confidence is NaN, too.
    return torch.searchsorted(cumulative, reached[:, None], right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


def uniform_numbers(seeds: Tensor, steps: Tensor, slot_numbers: Tensor) -> Tensor:
    """A number in [0, 1) for each mask [N], which depends on its row's seed, step and slot alone.

    It is SplitMix64's finaliser over a counter, as a random generator would need a state for every row.
    """
    bits = seeds + (steps * 2**32 + slot_numbers + 1) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        bits = (bits ^ ((bits >> shift) & (2 ** (64 - shift) - 1))) * factor
    return ((bits >> 40) & (2**24 - 1)).float() * 2.0**-24
