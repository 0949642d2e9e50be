"""Log-likelihoods under block-causal attention: sums over the blocks of a continuation.

A block is scored given the finished blocks before it, as in decoding. These hold the continuation's own tokens, so no
block waits for another: one pass scores many blocks, and the trajectories of a continuation advance side by side.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length
from mdlm_lm_eval.likelihood.scored_passes import Scoring, merged, take
from mdlm_lm_eval.likelihood.spans import FINISHED, SHARED, ContextRow, FinishedBlocks, Position, Span
from mdlm_lm_eval.likelihood.trajectories import Trajectory
from mdlm_lm_eval.model.prefix_store import SortKey, sort_key_of

# The most tokens of spans in a row and pass, and of continuations in a row: attention masks grow with their square.
_SPAN_TOKENS = 2048
_FINISHED_TOKENS = 2048
# A GPU runs so many tokens of spans in about the time in which it reads the weights.
_SPAN_TOKENS_ON_GPU = 256
# The difference between the seeds of a request's blocks; the seeds of neighbouring requests differ by one.
_BETWEEN_SEEDS = 0x9E3779B97F4A7C15


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
