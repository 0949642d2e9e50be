"""The changes of each mask's distribution in the last passes, for samplers that compare passes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.candidates import exclude, slices_of
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.windows import as_tensor
from mdlm_lm_eval.model.devices import to_device

_EPSILON = 1e-12  # as in arXiv 2511.05664


class History(Reader):
    """Distributions of L lanes' slots in the last pass, [L, N, V], and their changes in H passes, [L, H, T].

    Distributions lie on the device, changes on the host; both are zeros for slots that no pass has predicted yet.
    """

    def __init__(self, batch: Batch, n_lanes: int) -> None:
        self.banned_ids = batch.call.banned_ids
        n_slots = max(len(canvas.slots) for canvas in batch.canvases)
        self._before = torch.zeros(n_lanes, n_slots, batch.denoiser.vocab_size, device=batch.device)
        self._changes = torch.zeros(n_lanes, batch.structure.needs.history, batch.n_columns)

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Remembers the distributions, without tokens that are never proposed.

        Sends their Kullback-Leibler divergences [N] from those of the pass before, in nats.
        """
        exclude(logits, self.banned_ids)
        lanes, slots = as_tensor(asked.lane, logits.device), as_tensor(asked.slot, logits.device)
        found = []
        for part in slices_of(len(logits), logits):
            probabilities = logits[part].float().softmax(-1)
            changes = (probabilities + _EPSILON).log() - (self._before[lanes[part], slots[part]] + _EPSILON).log()
            found.append((probabilities * changes).sum(-1))
            self._before[lanes[part], slots[part]] = probabilities
        return {"divergence": torch.cat(found)}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """`View.divergence`: the changes in the last H passes, of which this one is the last."""
        now, columns = (
            torch.from_numpy(each) for each in (asked.onto_window(found["divergence"]), asked.window.columns)
        )
        on_canvas = torch.zeros_like(self._changes[:, 0]).scatter(1, columns, now)  # [R, T]
        self._changes = torch.cat([self._changes[:, 1:], on_canvas[:, None]], 1)
        return {"divergence": self._changes.gather(2, columns[:, None].expand(-1, self._changes.shape[1], -1))}

    def enter(self, lanes: Tensor) -> None:
        """Forgets the rows that were in `lanes` [K]."""
        self._before.index_fill_(0, to_device(lanes, self._before.device), 0.0)
        self._changes.index_fill_(0, lanes, 0.0)

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""
        self._before = self._before[to_device(lanes, self._before.device)]
        self._changes = self._changes[lanes]
