"""Shared prefixes: the tokens with which several rows begin are run once, and copied into the cache of every row.

This is exact where keys and values depend on earlier tokens alone: up to the end of a block under block-causal
attention, and up to any token where the context is causal.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.devices import iota, to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache

if TYPE_CHECKING:
    from mdlm_lm_eval.model.denoiser import Denoiser

# A prefix must save at least this many tokens to be worth a pass of its own.
LEAST_SAVED = 64
# Longer prefixes are run in parts of about this many tokens, as the attention mask has a row for each token.
MOST_RUN = 2048

SortKey = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False)
class Prefix:
    """The tokens with which several rows begin.

    parent: the next shorter shared prefix; None if there is none.
    sort_key: a key that sorts rows, see `sort_key_of`.
    """

    token_ids: tuple[int, ...]
    parent: "Prefix | None"
    sort_key: SortKey
    store: "PrefixStore"

    def __len__(self) -> int:
        return len(self.token_ids)

    def path(self) -> list["Prefix"]:
        """All shared prefixes up to and including this one, the shortest first."""
        found = [self]
        while (parent := found[-1].parent) is not None:
            found.append(parent)
        return found[::-1]


def sort_key_of(prefix: Prefix | None, length: int) -> SortKey:
    """A key that sorts rows by `length`, in tokens or slots: common prefixes follow each other, the longest first."""
    return (*(prefix.sort_key if prefix else ()), (0, -length, 0))


def shared_prefixes(
    rows: Sequence[tuple[int, ...]], step: int, store: "PrefixStore", *, least: float = LEAST_SAVED
) -> list[Prefix | None]:
    """For each row the longest prefix that it shares with others; None if it shares none.

    Rows must be cut at the last position at which a prefix may end; prefixes end whole `step`s before it. They are the
    branches of a trie over the rows, without those that save fewer than `least` tokens: a prefix saves its tokens for
    all rows and branches after it except one.
    """
    found: list[Prefix | None] = [None] * len(rows)
    number = itertools.count()
    order = sorted(range(len(rows)), key=lambda n: (len(rows[n]) % step, rows[n]))
    by_offset = itertools.groupby(order, key=lambda n: len(rows[n]) % step)
    branches: list[tuple[list[int], int, Prefix | None]] = [(list(of_offset), 0, None) for _, of_offset in by_offset]
    while branches:
        members, known, parent = branches.pop()
        first, last = rows[members[0]], rows[members[-1]]
        pairs = zip(first[known:], last[known:], strict=False)
        length = known + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        length = max(0, length - (length - len(first)) % step)
        n_whole = sum(len(rows[n]) == length for n in members)
        end = length + step if length else len(first) % step or step  # the first block is the short one
        by_next = itertools.groupby(members[n_whole:], key=lambda n: rows[n][length:end])
        parts = [list(part) for _, part in by_next]
        n_saved = (n_whole + len(parts) - 1) * (length - (len(parent) if parent else 0))
        if length and n_saved >= max(1, least):
            longest = max(len(rows[n]) for n in members)
            sort_key = (*(parent.sort_key if parent else ()), (1, -longest, next(number)))
            parent = Prefix(first[:length], parent, sort_key, store)
        for n in members[:n_whole]:
            found[n] = parent
        for part in parts:
            if len(part) == 1:
                found[part[0]] = parent
            else:
                branches.append((part, length, parent))
    return found


def most_held(prefixes: Sequence[Prefix | None]) -> int:
    """The most tokens of shared prefixes whose keys and values are stored at the same time."""
    return max((sum(map(len, prefix.path())) for prefix in set(prefixes) if prefix is not None), default=0)


def begin_rows(cache: CanvasCache, prefixes: Sequence[Prefix | None], rows: Sequence[int] | None = None) -> None:
    """Copies prefixes into rows of a cache, by default into the first ones."""
    rows = range(len(prefixes)) if rows is None else rows
    pairs = zip(prefixes, rows, strict=True)
    for prefix, of_prefix in itertools.groupby(pairs, key=lambda pair: pair[0]):
        if prefix is not None:
            prefix.store.copy(prefix, cache, [row for _, row in of_prefix])


class PrefixStore:
    """Keys and values of the prefix that was needed last, and of the shorter shared prefixes in it.

    is_guided: whether rows also run as unconditional rows, whose prefixes are masks.
    """

    def __init__(self, denoiser: "Denoiser", attention: AttentionPattern, *, is_guided: bool) -> None:
        self.denoiser, self.attention, self.n_rows = denoiser, attention, 2 if is_guided else 1
        self._held: dict[Prefix, CanvasCache] = {}
        self._n_positions = self._n_passes = self._n_copied = 0

    def clear(self) -> None:
        """Frees the stored keys and values."""
        self._held = {}

    def spent(self) -> tuple[int, int, int]:
        """The positions that it ran, its passes, and the positions that it copied, since the last call."""
        found = self._n_positions, self._n_passes, self._n_copied
        self._n_positions = self._n_passes = self._n_copied = 0
        return found

    def copy(self, prefix: Prefix, cache: CanvasCache, rows: Sequence[int]) -> None:
        """Copies a prefix into rows of a cache, and into their unconditional rows in its second half.

        It is run unless it is stored. Stored prefixes that are no part of it are dropped.
        """
        path = prefix.path()
        self._held = {each: stored for each, stored in self._held.items() if each in path}
        for each in path:
            if each not in self._held:
                self._held[each] = self._run(each)
        self._n_copied += self.n_rows * len(rows) * len(prefix)
        for n in range(self.n_rows):
            into = torch.tensor([row + n * cache.n_rows // self.n_rows for row in rows])
            cache.take(to_device(into, self.denoiser.device), self._held[prefix], slice(n, n + 1))

    @torch.no_grad()
    def _run(self, prefix: Prefix) -> CanvasCache:
        """The keys and values of a prefix whose parent is stored."""
        denoiser, length, known = self.denoiser, len(prefix), 0
        device, n_canvases = denoiser.device, denoiser.canvas_count
        cache = CanvasCache(denoiser.model.config.num_hidden_layers, length, self.n_rows)
        if prefix.parent is not None:
            known = len(prefix.parent)
            cache.take(iota(self.n_rows, device), self._held[prefix.parent], slice(None))
        step = self.attention.shared_step or length
        part = -(-MOST_RUN // step) * step
        ends = list(range(length, known, -part))[::-1]
        ids = to_device(torch.tensor([prefix.token_ids]), device)
        columns = torch.arange(length, device=device)[None]
        order = self.attention.order_of(columns, torch.full_like(columns[:, :1], length))
        for begin, end in itertools.pairwise([known, *ends]):
            denoiser.window_logits(
                ids[:, begin:end],
                columns[:, begin:end],
                order[:, None, :end] <= order[:, begin:end, None],
                columns[0, :0],
                cache=cache,
                n_seen=end,
                cfg_scale=float(self.n_rows - 1),
                prompt_mask=columns[:, begin:end] >= 0,
            )
            self._n_passes += 1
        self._n_positions += self.n_rows * (length - known)
        denoiser.canvas_count = n_canvases  # a prefix is no canvas
        return cache
