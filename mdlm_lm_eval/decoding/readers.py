"""Readers: what takes part in every pass over rows in lanes, for numbers that only some samplers and options need.

A pass does not know them. Those of thinking, of changes of distributions and of hindsight have files of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdlm_lm_eval.decoding.batch import Batch
from mdlm_lm_eval.decoding.canvas import FirstToken
from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.sampler import Choice
from mdlm_lm_eval.decoding.windows import Window, as_tensor
from mdlm_lm_eval.model.devices import to_device


@dataclass(frozen=True, eq=False)
class Asked:
    """The N places of a window at which a pass asks the model.

    tokens: [P, C], those of the window before the pass.
    masks, filled: [P, C] bool, the masks that it may fill, and the filled tokens among its places.
    indices: [N], the places' numbers in the flattened window.
    pass_row, offset: [N], the number of each one's row in the pass, and its number in this row.
    lane, slot: [N], the lane that each is in, and its number among the slots of its row.
    """

    window: Window
    tokens: Numbers
    masks: Numbers
    filled: Numbers
    indices: Numbers
    pass_row: Numbers
    offset: Numbers
    lane: Numbers
    slot: Numbers

    def onto_window(self, values: Numbers) -> Numbers:
        """Values [N] at the places of the window [P, C], and zeros elsewhere."""
        found = np.zeros(self.tokens.size, values.dtype)
        found[self.indices] = values
        return found.reshape(self.tokens.shape)


class Reader:
    """Sees the logits of each pass before tokens are proposed, and then the choice; it needs only some methods."""

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Reads, or changes, the logits [N, V]. What it returns is sent to the host with the proposals, by name."""
        return {}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """Fields of the sampler's `View`, from the numbers that were sent."""
        return {}

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Learns what the sampler chose."""

    def enter(self, lanes: Tensor) -> None:
        """Forgets the rows that were in `lanes` [K], on the host."""

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""


class SamplerState(Reader):
    """The sampler's own tensors [L, ...] by name, on the host."""

    def __init__(self, batch: Batch, n_lanes: int) -> None:
        self.batch = batch
        self.tensors = self._new(n_lanes)

    def _new(self, n: int) -> dict[str, Tensor]:
        return self.batch.structure.sampler.state(n, self.batch.n_columns, torch.device("cpu"))

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """`View.state`."""
        lanes = torch.from_numpy(asked.window.lanes[:, 0])
        return {"state": {name: each[lanes] for name, each in self.tensors.items()}}

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Keeps the tensors of the pass's rows."""
        taken = [n for n, row in enumerate(asked.window.rows) if row is not None]
        lanes = torch.from_numpy(asked.window.lanes[taken, 0])
        for name, each in choice.state.items():
            self.tensors[name][lanes] = each[taken]

    def enter(self, lanes: Tensor) -> None:
        """Sets the tensors of `lanes` [K] as they are before the first pass."""
        for name, fresh in self._new(len(lanes)).items():
            self.tensors[name][lanes] = fresh

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""
        self.tensors = {name: each[lanes] for name, each in self.tensors.items()}


class FirstSlot(Reader):
    """The model's answer at each row's first slot, for tasks whose answers are labels, with the tokens `label_ids`.

    It is read in the pass that fills the slot, before tokens are banned; a later one that fills it counts.
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

    def after(self, found: Mapping[str, Numbers], asked: Asked, choice: Choice) -> None:
        """Keeps the numbers of slots that were written."""
        (of_slots,) = (asked.slot == 0).nonzero()
        for n, (token, label, entropy) in zip(of_slots.tolist(), found["first"].tolist(), strict=True):
            row = asked.window.rows[asked.pass_row[n]]
            if row is not None and choice.written[asked.pass_row[n], asked.offset[n]]:
                row.first = FirstToken(int(token), int(label), entropy)


class NextToken(Reader):
    """Logits [L, V] of the token after each row's last finished block, for models whose finished blocks predict it.

    They are kept on the device for all passes over the block that begins with the token. A block's first token is at
    the second place of its row, the token after a finished block at the first.
    """

    def __init__(self, batch: Batch, n_lanes: int) -> None:
        self.device, self.n_lanes = batch.device, n_lanes
        self._logits: Tensor | None = None

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Writes the predictions of blocks' first tokens into `logits`, and keeps those of finished blocks."""
        if self._logits is None:
            self._logits = logits.new_zeros(self.n_lanes, logits.shape[1])
        follows = [row is not None and (row.number > 0 or row.layout.prompt is not None) for row in asked.window.rows]
        (first,) = ((asked.offset == 1) & np.array(follows)[asked.pass_row]).nonzero()
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
