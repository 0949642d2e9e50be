"""The changes of each mask's distribution in the last passes, for samplers that compare passes."""

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.candidates import slices_of

_EPSILON = 1e-12  # as in arXiv 2511.05664


class History:
    """Distributions of R lanes' slots in the last pass, [R, N + 1, V], and their changes in H passes, [R, H, T].

    The last slot is no row's. Both lie on the device, and are zeros for slots that no pass has predicted yet.
    """

    def __init__(self, n_lanes: int, n_slots: int, vocabulary: int, passes: int, columns: int, device: torch.device):
        self._before = torch.zeros(n_lanes, n_slots + 1, vocabulary, device=device)
        self._changes = torch.zeros(n_lanes, passes, columns, device=device)

    def enter(self, lanes: Tensor) -> None:
        """Forgets `lanes` [K]."""
        self._before.index_fill_(0, lanes, 0.0)
        self._changes.index_fill_(0, lanes, 0.0)

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""
        self._before, self._changes = self._before[lanes], self._changes[lanes]

    def add(self, logits: Tensor, row: Tensor, slots: Tensor) -> Tensor:
        """Remembers the distributions of `logits` [N, V] at `slots` [N] of `row` [N].

        Returns their Kullback-Leibler divergences [N] from those of the pass before, in nats.
        """
        found = []
        for part in slices_of(len(logits), logits):
            probabilities = logits[part].float().softmax(-1)
            changes = (probabilities + _EPSILON).log() - (self._before[row[part], slots[part]] + _EPSILON).log()
            found.append((probabilities * changes).sum(-1))
            self._before[row[part], slots[part]] = probabilities
        return torch.cat(found)

    def divergences(self, now: Tensor, columns: Tensor) -> Tensor:
        """The changes of the last H passes [R, H, W] at the window's `columns` [R, W]; `now` [R, W] are this pass's."""
        on_canvas = torch.zeros_like(self._changes[:, 0]).scatter(1, columns, now)  # [R, T]
        self._changes = torch.cat([self._changes[:, 1:], on_canvas[:, None]], 1)
        return self._changes.gather(2, columns[:, None].expand(-1, self._changes.shape[1], -1))
