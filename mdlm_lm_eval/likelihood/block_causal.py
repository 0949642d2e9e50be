"""Log-likelihoods under block-causal attention: sums over the blocks of a continuation.

A block is scored given the finished blocks before it, as in decoding. These hold the continuation's own tokens, so no
block waits for another: one pass scores many blocks, and the trajectories of a continuation advance side by side.
Finished blocks run once, and are seen by any number of noisy copies of blocks: a row of the batch holds the finished
blocks of one context and of the continuations after it, and then spans, which are copies of a block, each with masks of
its own. A span sees itself and the finished blocks before it, and no other span.
"""

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.likelihood.scored_passes import LikelihoodCanvas, Scoring, Trajectory, merged, take
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import bucket, positions_of, to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import Prefix, SortKey, begin_rows, sort_key_of

# Values of `Position.copy` beside the numbers of spans, which begin with 1.
FINISHED, _BESIDE, _PADDING = 0, -1, -2
# The owner of finished tokens that all requests of a row see.
SHARED = -1
# The most tokens of spans in a row and pass, and of continuations in a row: attention masks grow with their square.
_SPAN_TOKENS = 2048
_FINISHED_TOKENS = 2048
# A GPU runs so many tokens of spans in about the time in which it reads the weights.
_SPAN_TOKENS_ON_GPU = 256
# The difference between the seeds of a request's blocks; the seeds of neighbouring requests differ by one.
_BETWEEN_SEEDS = 0x9E3779B97F4A7C15


class Position(NamedTuple):
    """One token of a row.

    owner: the only request that sees it, or SHARED; for a column of a span, the request whose finished blocks it sees.
    copy: the number of its span; or FINISHED; or _PADDING; or _BESIDE, for a finished token that is run again, as a
        shifted model's output at the token before a span predicts the span's first token.
    """

    token_id: int
    position: int
    block: int
    owner: int
    copy: int
    in_context: bool


@dataclass
class Span(LikelihoodCanvas):
    """A copy of a block in a `row`; `of` is the block's trajectory."""

    row: int = 0

    @property
    def owner(self) -> int:
        """As in `Position`."""
        return self.of.index if self.of.offset > 0 else SHARED

    @property
    def key(self) -> Hashable:
        """Equal for copies that are equal for the model."""
        return self.owner, self.of.start, self.token_ids


@dataclass
class ContextRow:
    """The trajectories of blocks of requests with one context, and the finished tokens before them, after a prefix.

    spans: the copies of blocks that the next passes run.
    """

    prefix: Prefix | None
    trajectories: list[Trajectory] = field(default_factory=list)
    finished: list[Position] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class FinishedBlocks:
    """The finished blocks of a batch's rows, with their keys and values after the first pass.

    widest: the most columns of spans in one row; 0 if there is a single pass, whose keys and values are not kept.
    """

    def __init__(self, denoiser: Denoiser, rows: Sequence[ContextRow], widest: int) -> None:
        device = denoiser.device
        self.length, self.widest = max(len(row.finished) for row in rows), positions_of(widest, device)
        if widest:  # else a pass runs all columns, and their sum is rounded up
            self.length = positions_of(self.length, device)
        may_be_graph = len(rows) * self.length <= denoiser.most_in_graph
        self.n_more = bucket(len(rows), device) - len(rows) if may_be_graph else 0
        self.denoiser, self.rows = denoiser, [*(row.finished for row in rows), *[[]] * self.n_more]
        self.prefixes = [*(row.prefix for row in rows), *[None] * self.n_more]
        shared = torch.tensor([len(prefix or ()) for prefix in self.prefixes])
        self.n_before = int(shared.max())
        self.shared = to_device(shared, device)[:, None, None]  # [R, 1, 1]
        self.cache: CanvasCache | None = None

    def logits(self, spans: Sequence[Span], cfg_scale: float) -> Tensor:
        """Logits [N, V] at the spans' positions, span by span, from one forward pass."""
        n_rows, guided = len(self.rows), 2 if cfg_scale > 0.0 else 1
        first = 0 if self.cache is None else self.length  # column of these that the pass runs
        pad = Position(self.denoiser.pad_token_id, 0, 0, SHARED, _PADDING, False)
        of_spans, rows, outputs = self._columns(spans)
        width = max(map(len, of_spans))
        width = positions_of(width + self.length, self.denoiser.device) - self.length
        if self.cache is None and (self.widest or self.n_before):
            most = self.n_before + self.length + max(width, self.widest)
            self.cache = CanvasCache(self.denoiser.model.config.num_hidden_layers, most, guided * n_rows)
            begin_rows(self.cache, self.prefixes)
        self.denoiser.canvas_count -= self.n_more * guided
        finished = [[*row, *[pad] * (self.length - len(row))] for row in self.rows]
        table = [
            [*row, *columns, *[pad] * (width - len(columns))] for row, columns in zip(finished, of_spans, strict=True)
        ]
        keys = to_device(torch.tensor(table), self.denoiser.device)  # [R, T + W, 6]
        queries = keys[:, first:]
        flat = torch.tensor(rows) * queries.shape[1] + torch.tensor(outputs) + (self.length - first)
        sees, n_seen = _sees(queries, keys), self.n_before + keys.shape[1]
        if self.n_before:
            is_shared = torch.arange(self.n_before, device=keys.device) < self.shared  # [R, 1, P]
            sees = torch.cat([is_shared.expand(-1, queries.shape[1], -1), sees], 2)
        columns_run = torch.arange(self.n_before + first, n_seen, device=keys.device).expand(len(keys), -1)
        return self.denoiser.window_logits(
            queries[..., 0],
            columns_run,
            sees,
            to_device(flat, keys.device),
            position_ids=queries[..., 1],
            cache=self.cache,
            n_seen=n_seen,
            cfg_scale=cfg_scale,
            prompt_mask=queries[..., 5].bool(),
        )

    def _columns(self, spans: Sequence[Span]) -> tuple[list[list[Position]], list[int], list[int]]:
        """The columns of spans in each row, and for N outputs the row of each, and its number among these columns."""
        of_spans: list[list[Position]] = [[] for _ in self.rows]
        rows: list[int] = []
        outputs: list[int] = []
        for number, span in enumerate(spans, start=1):
            columns = of_spans[span.row]
            start, block = span.of.start, span.of.block
            if self.denoiser.shift and span.of.left is not None:
                token_id, before = span.of.left
                in_context = span.owner == SHARED
                columns.append(Position(token_id, start - 1, before, span.owner, _BESIDE, in_context))
            for position in span.positions():
                offset = span.context_length + position
                # A text's first token has its own output.
                is_shifted = self.denoiser.shift and start + offset > 0
                rows.append(span.row)
                outputs.append(len(columns) + offset - int(is_shifted))
            columns += [
                Position(token_id, start + n, block, span.owner, number, n < span.context_length)
                for n, token_id in enumerate(span.token_ids)
            ]
        return of_spans, rows, outputs


def _sees(queries: Tensor, keys: Tensor) -> Tensor:
    """Which keys a query sees, [R, Q, K] bool, of columns [R, Q, 6] and [R, K, 6]."""
    _, _, block, owner, copy, _ = queries[:, :, None].unbind(-1)  # [R, Q, 1] each
    _, _, key_block, key_owner, key_copy, _ = keys[:, None].unbind(-1)  # [R, 1, K] each
    last_block = block - (copy > 0).long()  # a span has its own block in its own copy
    finished = (key_copy == FINISHED) & (key_block <= last_block) & ((key_owner == SHARED) | (key_owner == owner))
    # Padding sees everything, as some kernels return NaN for a query that sees nothing.
    return finished | ((key_copy == copy) & (copy > 0)) | (copy == _PADDING)


def _trajectories_of_blocks(scoring: Scoring, index: int, request: LikelihoodRequest) -> list[Trajectory]:
    """One trajectory for every block that holds tokens of the continuation.

    Masks fill the last block if the model needs whole blocks.
    """
    attention, length = scoring.denoiser.attention, answer_length(request, scoring.options)
    context, tokens = len(request.context_ids), request.context_ids + request.continuation_ids
    if attention.whole_blocks and attention.block_length is not None:
        length += -(context + length) % attention.block_length
    trajectories: list[Trajectory] = []
    by_block = itertools.groupby(range(length), key=lambda i: attention.block_of(context + i, context))
    for block, of_block in by_block:
        inside = list(of_block)
        offset = inside[0]
        continuation = request.continuation_ids[offset : inside[-1] + 1]
        if not continuation:
            break  # the rest are masks that no token of the continuation sees
        start = attention.start_of(context + offset, context)
        in_block = LikelihoodRequest(
            request.context_ids[start:] if offset == 0 else [],
            continuation,
            (request.seed + len(trajectories) * _BETWEEN_SEEDS) % 2**63,
        )
        trajectories.append(
            Trajectory(
                index,
                in_block,
                len(inside),
                list(range(len(continuation))),
                first_alone=scoring.denoiser.shift
                and attention.blocks_from == "row_start"
                and 0 < start == context + offset,
                block=block,
                start=start,
                offset=offset,
                left=(tokens[start - 1], attention.block_of(start - 1, context)) if start else None,
            )
        )
    return trajectories


class _Room(NamedTuple):
    """A pass has room for so many `spans`, and for more if they have at most so many `tokens`."""

    spans: int
    tokens: int

    def has(self, spans: Sequence[Span]) -> bool:
        """Whether one pass has room for all of these."""
        return len(spans) <= self.spans or sum(len(span.token_ids) for span in spans) <= self.tokens

    def parts(self, spans: Sequence[Span]) -> list[list[Span]]:
        """The spans of each pass, in their order."""
        found: list[list[Span]] = []
        for span in spans:
            if found and self.has([*found[-1], span]):
                found[-1].append(span)
            else:
                found.append([span])
        return found

    def widest(self, spans: Sequence[Span]) -> int:
        """The most columns of a pass over spans no longer than these, each with the token before it."""
        return max(self.spans * (max(len(span.token_ids) for span in spans) + 1), 2 * self.tokens)


def score_blocks(scoring: Scoring, requests: Sequence[LikelihoodRequest]) -> list[list[Trajectory]]:
    """Adds the terms of all blocks; returns the trajectories of each request's blocks.

    Without corruptions, trajectories are followed to their ends. With corruptions and `check_greedy`, they are followed
    as long as all of a request's are greedy; without `check_greedy`, not at all.
    """
    denoiser = scoring.denoiser
    longest = max((len(request.continuation_ids) for request in requests), default=0)
    block_length = denoiser.attention.block_length or longest
    # A pass runs at most as many positions as one over `batch_size` canvases under full attention.
    most_spans = scoring.batch_size * max(1, math.ceil(longest / block_length))
    room = _Room(
        spans=min(most_spans, max(1, _SPAN_TOKENS // block_length)),
        tokens=_SPAN_TOKENS_ON_GPU if denoiser.device.type == "cuda" else 0,
    )
    trajectories: list[list[Trajectory]] = [[] for _ in requests]
    for batch in _batches(scoring, _context_rows(scoring, requests), room):
        of_batch = [trajectory for row in batch for trajectory in row.trajectories]
        for trajectory in of_batch:
            trajectories[trajectory.index].append(trajectory)
        _score_batch(scoring, batch, of_batch, room)
    return trajectories


def _score_batch(scoring: Scoring, batch: Sequence[ContextRow], of_batch: Sequence[Trajectory], room: _Room) -> None:
    """Runs the passes over a batch of rows and its trajectories."""
    spans, walking = [span for row in batch for span in row.spans], replace(scoring, corruptions_of=None)
    several = len(room.parts(spans)) > 1 or (scoring.walks and any(len(t.masked) > 1 for t in of_batch))
    finished = FinishedBlocks(scoring.denoiser, batch, room.widest(spans) if spans and several else 0)
    while spans:
        for part in room.parts(spans):
            take(scoring, part, finished.logits(part, scoring.options.cfg_scale), strict=True)
        spans = []
        for number, row in enumerate(batch if scoring.walks else []):
            spans += merged(walking, _going(scoring, row.trajectories), functools.partial(Span, row=number))


def _going(scoring: Scoring, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """A row's trajectories that go on: with corruptions, those of requests of which all are greedy so far."""
    if scoring.corruptions_of is None:
        return trajectories
    stopped = {one.index for one in trajectories if not one.is_greedy}
    return [one for one in trajectories if one.index not in stopped]


def _context_rows(scoring: Scoring, requests: Sequence[LikelihoodRequest]) -> Iterator[ContextRow]:
    """Rows of requests with the same context; rows with the same prefix are together, and the longest come first."""

    def context(index: int) -> tuple[SortKey, list[int]]:
        request = requests[index]
        return sort_key_of(request.prefix, len(request.context_ids)), request.context_ids

    for _, same_context in itertools.groupby(sorted(range(len(requests)), key=context), key=context):
        indices = list(same_context)
        prefix, n_context = requests[indices[0]].prefix, len(requests[indices[0]].context_ids)
        row = ContextRow(prefix)
        for index in indices:
            if len(prefix or ()) + len(row.finished) - n_context > _FINISHED_TOKENS:
                yield row
                row = ContextRow(prefix)
            _add_request(scoring, row, index, requests[index])
        yield row


def _add_request(scoring: Scoring, row: ContextRow, index: int, request: LikelihoodRequest) -> None:
    attention, context = scoring.denoiser.attention, len(request.context_ids)
    trajectories = _trajectories_of_blocks(scoring, index, request)
    tokens = request.context_ids + request.continuation_ids

    def finished(positions: range, owner: int) -> list[Position]:
        return [Position(tokens[p], p, attention.block_of(p, context), owner, FINISHED, p < context) for p in positions]

    if trajectories:
        first, last = trajectories[0].start, trajectories[-1].start
        if not row.finished:
            row.finished += finished(range(len(row.prefix or ()), first), SHARED)
        row.finished += finished(range(first, last), index)
    row.trajectories += trajectories


def _batches(scoring: Scoring, rows: Iterator[ContextRow], room: _Room) -> Iterator[list[ContextRow]]:
    """Batches of rows with their first spans; a batch has several rows only if one pass has room for all their spans.

    Rows with and without a shared prefix are in different batches, as the latter run more columns.
    """
    batch: list[ContextRow] = []
    spans: list[Span] = []
    for row in rows:
        row.spans = merged(scoring, row.trajectories, Span)
        differs = bool(batch) and (batch[0].prefix is None) != (row.prefix is None)
        if batch and (differs or len(batch) == scoring.batch_size or not room.has([*spans, *row.spans])):
            yield batch
            batch, spans = [], []
        for span in row.spans:
            span.row = len(batch)
        batch.append(row)
        spans += row.spans
    if batch:
        yield batch
