"""Logits of the token after each row's last finished block, for models whose finished blocks predict it."""

import numpy as np
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.windows import as_tensor
from mdlm_lm_eval.model.devices import to_device


class NextToken(Reader):
    """Keeps these logits, [L, V] on the device, for all passes over the block that begins with the token.

    A block's first token is at the second place of its row, the token after a finished block at the first.
    """

    def __init__(self, batch: Batch, n_lanes: int) -> None:
        self.device, self.n_lanes = batch.device, n_lanes
        self._logits: Tensor | None = None

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Writes the predictions of blocks' first tokens into `logits`, and keeps those of finished blocks."""
        if self._logits is None:
            self._logits = logits.new_zeros(self.n_lanes, logits.shape[1])
        follows = [row is not None and (row.number > 0 or row.plan.prompt is not None) for row in asked.window.rows]
        (first,) = ((asked.offset == 1) & np.array(follows)[asked.place]).nonzero()
        (after,) = (asked.offset == 0).nonzero()
        if len(first):
            logits[as_tensor(first, self.device)] = self._logits[as_tensor(asked.lane[first], self.device)]
        if len(after):
            self._logits[as_tensor(asked.lane[after], self.device)] = logits[as_tensor(after, self.device)]
        return {}

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""
        self.n_lanes = len(lanes)
        if self._logits is not None:
            self._logits = self._logits[to_device(lanes, self.device)]
