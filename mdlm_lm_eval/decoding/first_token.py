"""What a model would answer at the first slot of a canvas: any token, a label, or the end of the text.

Read from the logits of the pass that fills the slot, before any token is banned or made likelier, at no extra pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mdlm_lm_eval.model.devices import iota


class FirstToken(NamedTuple):
    """At the first slot: the likeliest of all tokens, the likeliest of the label tokens, and the entropy in nats."""

    token: int
    label: int
    entropy: float


def read(logits: Tensor, label_ids: Tensor) -> Tensor:
    """The numbers of `FirstToken` [R, 3] float32 of `logits` [R, V], whose labels are the tokens `label_ids` [L]."""
    entropy = torch.special.entr(logits.float().softmax(-1)).sum(-1)
    label = label_ids[logits[:, label_ids].argmax(-1)]
    return torch.stack([logits.argmax(-1).float(), label.float(), entropy], 1)


def of_first_slots(logits: Tensor, at: Tensor | None, is_first: Tensor, n_places: int) -> Tensor:
    """The logits [R, V] at the first slots, which are where `is_first` [R, W].

    `logits` are of all `n_places` of every row, or of the flattened places `at` [N], ascending. Of a row whose first
    slot is not among them they are another place's.
    """
    place = is_first.to(torch.uint8).argmax(1) + iota(len(is_first), logits.device) * n_places
    return logits[place if at is None else torch.searchsorted(at, place).clamp(max=len(at) - 1)]
