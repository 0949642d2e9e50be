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

_EPSILON = 1e-12  # as in arXiv 2511.05664


class History(Reader):
    """Distributions of L lanes' slots in the last pass, [L, N, V], and their changes in H passes, [L, H, T].

    Distributions lie on the device, changes on the host; both are zeros for slots that no pass has predicted yet.
    """

    def __init__(self, batch: Batch) -> None:
        self.banned_ids = batch.call.banned_ids
        n_slots = max(len(canvas.slots) for canvas in batch.canvases)
        self.fresh = {
            "history.distributions": torch.zeros(1, device=batch.device).expand(1, n_slots, batch.denoiser.vocab_size),
            "history.changes": torch.zeros(1, batch.structure.needs.history, batch.n_columns),
        }

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Remembers the distributions, without tokens that are never proposed.

        Sends their Kullback-Leibler divergences [N] from those of the pass before, in nats.
        """
        exclude(logits, self.banned_ids)
        before, found = asked.window.of.state["history.distributions"], []
        lanes, slots = as_tensor(asked.lane, logits.device), as_tensor(asked.slot, logits.device)
        for part in slices_of(len(logits), logits):
            probabilities = logits[part].float().softmax(-1)
            changes = (probabilities + _EPSILON).log() - (before[lanes[part], slots[part]] + _EPSILON).log()
            found.append((probabilities * changes).sum(-1))
            before[lanes[part], slots[part]] = probabilities
        return {"divergence": torch.cat(found)}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """`View.divergence`: the changes in the last H passes, of which this one is the last."""
        now = torch.from_numpy(asked.onto_window(found["divergence"]))
        columns, state = torch.from_numpy(asked.window.columns), asked.window.of.state
        before = state["history.changes"]
        on_canvas = torch.zeros_like(before[:, 0]).scatter(1, columns, now)  # [R, T]
        changes = state["history.changes"] = torch.cat([before[:, 1:], on_canvas[:, None]], 1)
        return {"divergence": changes.gather(2, columns[:, None].expand(-1, changes.shape[1], -1))}
