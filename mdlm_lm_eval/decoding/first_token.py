"""The model's answer at each row's first slot, for tasks whose answers are labels."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.canvas import FirstToken
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.readers import Asked, Reader
from mdlm_lm_eval.decoding.windows import as_tensor


class FirstTokens(Reader):
    """Reads `FirstToken` of the pass that fills the slot, before tokens are banned; a later one that fills it counts.

    label_ids: the labels' tokens.
    """

    def __init__(self, batch: Batch, label_ids: Sequence[int]) -> None:
        self.device = batch.device
        self.label_ids = as_tensor(torch.tensor(label_ids).numpy(), batch.device)

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """The numbers [K, 3] of `FirstToken` at the K first slots among the places."""
        (found,) = (asked.slot == 0).nonzero()
        chosen = logits[as_tensor(found, self.device)]
        entropy = torch.special.entr(chosen.float().softmax(-1)).sum(-1)
        label = self.label_ids[chosen[:, self.label_ids].argmax(-1)]
        return {"first": torch.stack([chosen.argmax(-1).double(), label.double(), entropy.double()], 1)}

    def after(self, found: Mapping[str, Numbers], asked: Asked, written: Tensor) -> None:
        """Keeps the numbers of slots that were written."""
        (of_slots,) = (asked.slot == 0).nonzero()
        for n, (token, label, entropy) in zip(of_slots.tolist(), found["first"].tolist(), strict=True):
            row = asked.window.rows[asked.place[n]]
            if row is not None and written[asked.place[n], asked.offset[n]]:
                row.first = FirstToken(int(token), int(label), entropy)
