"""Passes under block-causal attention: finished blocks run once, and are seen by any number of noisy copies of blocks.

A row of the batch holds the finished blocks of one context and of the continuations after it, and then spans: copies of
a block, each with masks of its own. A span sees itself and the finished blocks before it, and no other span.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mdlm_lm_eval.likelihood.scored_passes import LikelihoodCanvas
from mdlm_lm_eval.likelihood.trajectories import Trajectory
from mdlm_lm_eval.model.denoiser import Denoiser
from mdlm_lm_eval.model.devices import bucket, positions_of, to_device
from mdlm_lm_eval.model.kv_cache import CanvasCache
from mdlm_lm_eval.model.prefix_store import Prefix, begin_rows

# Values of `Position.copy` beside the numbers of spans, which begin with 1.
FINISHED, _BESIDE, _PADDING = 0, -1, -2
# The owner of finished tokens that all requests of a row see.
SHARED = -1


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
