"""Kernels in Triton for small operations between matrix products that torch runs as several kernels, on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024  # of a state that one program sums
_VOCABULARY = 4096  # logits that a program reads at a time


@triton.jit
def _weighted_sum(states, weights, places, sums, size, n_states: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for n in tl.static_range(n_states):
        place = tl.load(places + row * n_states + n)
        weight = tl.load(weights + row * n_states + n).to(tl.float32)
        state = tl.load(states + place * size + columns, mask=columns < size, other=0.0)
        total += weight * state.to(tl.float32)
    tl.store(sums + row * size + columns, total.to(sums.dtype.element_ty), mask=columns < size)


def weighted_sum(states: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """For each of T tokens the sum [T, H] of K `states` [T * K, H], at `places` [T, K], by their `weights` [T, K].

    Terms are added in float32, in their order, and rounded once.
    """
    (n_tokens, n_states), size = weights.shape, states.shape[1]
    sums = states.new_empty(n_tokens, size)
    grid = n_tokens, triton.cdiv(size, _COLUMNS)
    _weighted_sum[grid](states, weights, places, sums, size, n_states=n_states, block=_COLUMNS)
    return sums


@triton.jit
def _surest(logits, tokens, others, stride, size: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, block)
    best = -float("inf")
    token = tl.zeros([], tl.int64)
    rest = tl.zeros([], tl.float32)  # of exp(logit - best), without the best
    for first in range(0, size, block):
        columns = first + offsets
        values = tl.load(logits + row * stride + columns, mask=columns < size, other=-float("inf")).to(tl.float32)
        largest, at = tl.max(values, axis=0, return_indices=True)
        scale = tl.where(largest == -float("inf"), 0.0, largest)  # no difference of infinities
        found = tl.sum(tl.where(offsets == at, 0.0, tl.exp(values - scale)), axis=0)
        is_better = largest > best
        lower = tl.where(is_better, best, largest)
        higher = tl.where(is_better, largest, best)
        ratio = tl.where(lower == -float("inf"), 0.0, tl.exp(lower - higher))
        rest = tl.where(is_better, found + (rest + 1.0) * ratio, rest + (found + 1.0) * ratio)
        token = tl.where(is_better, first + at, token).to(tl.int64)
        best = higher
    tl.store(tokens + row, token)
    tl.store(others + row, rest + (best - best))  # NaN unless the largest logit is finite


def surest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The token [N] of the largest of `logits` [N, V], the first of equals, and (1 - p) / p [N] of its probability p.

    The latter is float32, and NaN if a logit is NaN or infinite, or all are -inf.
    """
    n, size = logits.shape
    tokens = logits.new_empty(n, dtype=torch.long)
    others = logits.new_empty(n, dtype=torch.float32)
    if n:
        _surest[(n,)](logits, tokens, others, logits.stride(0), size=size, block=_VOCABULARY, num_warps=8)
    return tokens, others
