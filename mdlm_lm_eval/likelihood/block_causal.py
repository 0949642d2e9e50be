"""Log-likelihoods under block-causal attention: sums over the blocks of a continuation.

A block is scored given the finished blocks before it, as in decoding. These hold the continuation's own tokens, so no
block waits for another: one pass scores many blocks, and the trajectories of a continuation advance side by side.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from mdlm_lm_eval.likelihood.corruptions import Corruption
from mdlm_lm_eval.likelihood.requests import LikelihoodRequest, answer_length, answer_tokens, chunks
from mdlm_lm_eval.likelihood.scored_passes import Scoring, merged, take
from mdlm_lm_eval.likelihood.spans import FINISHED, SHARED, Column, FinishedBlocks, Span
from mdlm_lm_eval.likelihood.trajectories import Trajectory
from mdlm_lm_eval.model.attention import AttentionPattern
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.prefix_store import Place, Prefix, place_of
from mdlm_lm_eval.options import LikelihoodOptions

# The most tokens of spans in a row and pass, and of continuations in a row: attention masks grow with their square.
_SPAN_TOKENS = 2048
_FINISHED_TOKENS = 2048
# The difference between the seeds of a request's blocks; the seeds of neighbouring requests differ by one.
_BETWEEN_SEEDS = 0x9E3779B97F4A7C15


@dataclass
class ContextRow:
    """The trajectories of blocks of requests with one context, and the finished tokens before them, after a prefix."""

    trajectories: list[Trajectory]
    finished: list[Column]
    prefix: Prefix | None


def trajectories_of_blocks(
    index: int, request: LikelihoodRequest, length: int, attention: AttentionPattern, *, shift: bool
) -> list[Trajectory]:
    """One trajectory for every block that holds tokens of the continuation; `length` tokens follow the context.

    Masks fill the last block if the model needs whole blocks.
    """
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
                first_alone=shift and attention.blocks_from == "row_start" and 0 < start == context + offset,
                block=block,
                start=start,
                offset=offset,
                left=(tokens[start - 1], attention.block_of(start - 1, context)) if start else None,
            )
        )
    return trajectories


def score_blocks(scoring: Scoring, requests: Sequence[LikelihoodRequest]) -> list[list[Trajectory]]:
    """Adds the terms of all blocks to the totals; returns the trajectories of each request's blocks.

    Without corruptions, trajectories are followed to their ends. With corruptions and `check_greedy`, they are followed
    as long as all of a request's are greedy; without `check_greedy`, not at all.
    """
    denoiser, options = scoring.denoiser, scoring.options
    longest = max((len(request.continuation_ids) for request in requests), default=0)
    block_length = denoiser.attention.block_length or longest
    # A pass runs at most as many positions as one over `batch_size` canvases under full attention.
    most_spans = min(
        scoring.batch_size * max(1, math.ceil(longest / block_length)), max(1, _SPAN_TOKENS // block_length)
    )
    trajectories: list[list[Trajectory]] = [[] for _ in requests]
    rows = _context_rows(denoiser, requests, options)
    for batch in _batches(scoring, rows, most_spans):
        of_batch = [trajectory for row, _ in batch for trajectory in row.trajectories]
        for trajectory in of_batch:
            trajectories[trajectory.index].append(trajectory)
        spans = [span for _, of_row in batch for span in of_row]
        several = len(spans) > most_spans or (scoring.walks and any(len(t.masked) > 1 for t in of_batch))
        widest = most_spans * (max(len(span.token_ids) for span in spans) + 1) if spans and several else 0
        prefixes = [row.prefix for row, _ in batch]
        finished = FinishedBlocks(denoiser, [row.finished for row, _ in batch], prefixes, widest)
        while spans:
            for part in chunks(spans, most_spans):
                take(scoring, part, finished.logits(part, options.cfg_scale), strict=True)
            stopped = set() if scoring.corruptions_of is None else {t.index for t in of_batch if not t.is_greedy}
            spans = []
            for number, (row, _) in enumerate(batch if scoring.walks else []):
                going = [t for t in row.trajectories if t.masked and t.index not in stopped]
                spans += _spans(number, going, denoiser.mask_token_id)
    return trajectories


def _context_rows(
    denoiser: Denoiser, requests: Sequence[LikelihoodRequest], options: LikelihoodOptions
) -> Iterator[ContextRow]:
    """Rows of requests with the same context; rows with the same prefix are together, and the longest come first."""

    def context(index: int) -> tuple[Place, list[int]]:
        request = requests[index]
        return place_of(request.prefix, len(request.context_ids)), request.context_ids

    for _, same_context in itertools.groupby(sorted(range(len(requests)), key=context), key=context):
        indices = list(same_context)
        prefix, n_context = requests[indices[0]].prefix, len(requests[indices[0]].context_ids)
        row = ContextRow([], [], prefix)
        for index in indices:
            if len(prefix or ()) + len(row.finished) - n_context > _FINISHED_TOKENS:
                yield row
                row = ContextRow([], [], prefix)
            _add_request(row, index, requests[index], options, denoiser)
        yield row


def _add_request(
    row: ContextRow, index: int, request: LikelihoodRequest, options: LikelihoodOptions, denoiser: Denoiser
) -> None:
    attention, context = denoiser.attention, len(request.context_ids)
    trajectories = trajectories_of_blocks(
        index, request, answer_length(request, options), attention, shift=denoiser.shift
    )
    tokens = request.context_ids + request.continuation_ids

    def finished(positions: range, owner: int) -> list[Column]:
        return [Column(tokens[p], p, attention.block_of(p, context), owner, FINISHED, p < context) for p in positions]

    if trajectories:
        first, last = trajectories[0].start, trajectories[-1].start
        if not row.finished:
            row.finished += finished(range(len(row.prefix or ()), first), SHARED)
        row.finished += finished(range(first, last), index)
    row.trajectories += trajectories


def _batches(
    scoring: Scoring, rows: Iterator[ContextRow], most_spans: int
) -> Iterator[list[tuple[ContextRow, list[Span]]]]:
    """Batches of rows with their first spans; a batch has several rows only if one pass has room for all their spans.

    Rows with and without a shared prefix are in different batches, as the latter run more columns.
    """
    batch: list[tuple[ContextRow, list[Span]]] = []
    n_spans = 0
    for row in rows:
        number = len(batch)
        spans = _spans(0, row.trajectories, scoring.denoiser.mask_token_id, scoring.corruptions_of, walks=scoring.walks)
        differs = bool(batch) and (batch[0][0].prefix is None) != (row.prefix is None)
        if batch and (differs or len(batch) == scoring.batch_size or n_spans + len(spans) > most_spans):
            yield batch
            batch, n_spans, number = [], 0, 0
        for span in spans:
            span.row = number
        batch.append((row, spans))
        n_spans += len(spans)
    if batch:
        yield batch


def _spans(
    row: int,
    going: Sequence[Trajectory],
    mask_token_id: int,
    corruptions_of: Callable[[LikelihoodRequest], list[Corruption]] | None = None,
    *,
    walks: bool = True,
) -> list[Span]:
    """Copies of blocks for a row; copies that are equal for the model are one. See `merged`."""

    def span(trajectory: Trajectory, masked: Sequence[int]) -> tuple[Hashable, Span]:
        request = trajectory.request
        tokens = request.context_ids + answer_tokens(request, trajectory.answer_length, masked, mask_token_id)
        owner = trajectory.index if trajectory.offset > 0 else SHARED
        made = Span(tokens, len(request.context_ids), of=trajectory, row=row, owner=owner)
        return (owner, trajectory.start, *tokens), made

    return merged(going, span, corruptions_of, walks=walks)
