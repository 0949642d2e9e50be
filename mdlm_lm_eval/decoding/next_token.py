"""Logits of the token after each row's last finished block, for models whose finished blocks predict it."""

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.places import Places
from mdlm_lm_eval.model.devices import iota


class NextTokenLogits:
    """Logits [R + 1, V] for R lanes and one that nothing reads; they are allocated with the first pass."""

    def __init__(self, n_lanes: int) -> None:
        self.n_lanes = n_lanes
        self._logits: Tensor | None = None

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""
        if self._logits is not None:
            self._logits = self._logits[torch.cat([lanes, lanes.new_full((1,), self.n_lanes)])]
        self.n_lanes = len(lanes)

    def exchange(self, logits: Tensor, places: Places, lanes: Tensor | None, asked: Tensor, has_before: Tensor) -> None:
        """Writes the remembered predictions of blocks' first tokens into `logits`, and remembers new ones.

        A block's first token is at the second place of its row; the token after a finished block is at the first.
        `logits` [N, V] are those at `places`, of rows in `lanes` [R] (None for all). The first column of `asked` [R, G]
        bool says which rows finished a block, `has_before` [R] bool which blocks follow another one.
        """
        n_rows, n_places = places.wanted.shape
        if self._logits is None:
            self._logits = logits.new_zeros(self.n_lanes + 1, logits.shape[1])
        if places.at is None:
            of_places, rows = logits.view(n_rows, n_places, -1), slice(n_rows) if lanes is None else lanes
            before, is_first = self._logits[rows], (places.wanted[:, 1] & has_before)[:, None]
            of_places[:, 1] = before.where(is_first, of_places[:, 1])
            self._logits[rows] = of_places[:, 0].where(asked[:, :1], before)
            return
        if not len(places.at):
            return
        of_rows = iota(n_rows, logits.device) if lanes is None else lanes
        for is_there, is_finished in (
            ((places.offset == 1) & has_before[places.row], False),
            (places.offset == 0, True),
        ):
            if places.inside is not None:
                is_there = is_there & places.inside
            n = torch.nonzero_static(is_there, size=n_rows, fill_value=0).squeeze(1)  # [R] of the N
            lane = of_rows[places.row[n]]
            if is_finished:
                self._logits[lane.where(is_there[n], self.n_lanes)] = logits[n]
            else:
                logits[n] = self._logits[lane].where(is_there[n, None], logits[n])
