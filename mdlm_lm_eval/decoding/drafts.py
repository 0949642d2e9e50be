"""Drafts of a row's next steps: they run in the same pass, and are kept if decoding would have taken them.

One pass runs several views of a row: its canvas, and the same canvas with the first, the first two, ... of the tokens
that the pass before would have filled next (arXiv 2510.00294). A pass changes each view as decoding would change such a
canvas. If the result is the next view, the result of that view counts, too. So drafts change no token and take no
additional pass.
"""

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.rows import Rows
from mdlm_lm_eval.decoding.sampler import Choice, View
from mdlm_lm_eval.model.devices import iota


def drafted(view: View, choice: Choice, n_columns: int) -> Tensor:
    """The masks that are left after a pass, [R, 2, T]: their ranks from 1 in the order of filling, and their tokens."""
    left = view.masks & ~choice.fill
    order = (view.priority if choice.order is None else choice.order).masked_fill(~left, -torch.inf)
    rank = order.argsort(dim=1, descending=True, stable=True).argsort(1) + 1
    drafts = torch.stack([rank * left, view.proposed * left], 1)  # [R, 2, C]
    columns = view.columns[:, None].expand_as(drafts)
    return drafts.new_zeros(len(drafts), 2, n_columns).scatter_(2, columns, drafts)


def views_of(rows: Rows, n_views: int) -> Rows:
    """`n_views` views of each of R rows, those without drafts first, then those with one, and so on."""
    n_rows = len(rows.at)
    every = iota(n_views * n_rows, rows.at.device)
    views = rows.of(every % n_rows)
    rank, tokens = views.drafts.unbind(1)
    is_there = (rank > 0) & (rank <= (every // n_rows)[:, None])
    views.tokens = tokens.where(is_there, views.tokens)
    return views


def keep_agreed(rows: Rows, views: Rows, before: Tensor) -> None:
    """Overwrites each row with the last of its `views` that decoding would have reached, as it is after a pass.

    `before` [V R, T] are the views' tokens before the pass.
    """
    n_rows, n_columns = rows.tokens.shape
    before, after = (tokens.view(-1, n_rows, n_columns) for tokens in (before, views.tokens))
    is_next = (after[:-1] == before[1:]).all(2)  # [V - 1, R]
    last = is_next.long().cumprod(0).sum(0)  # [R]
    every = iota(n_rows, last.device)
    if rows.confidence is not None:  # a token keeps the confidence of the view in which it was filled
        is_reached = iota(len(after), last.device)[:, None] <= last
        is_written = (after != before) & is_reached[..., None]
        found = (views.confidence.view(before.shape) * is_written).sum(0)
        found = found.where(is_written.any(0), rows.confidence)
    rows.put(every, views.of(last * n_rows + every), changes_only=True)
    if rows.confidence is not None:
        rows.confidence = found
