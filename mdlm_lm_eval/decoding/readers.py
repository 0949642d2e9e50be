"""Readers: what sees the logits of every pass before tokens are proposed, for numbers that only some options need.

They add to a pass without that it knows them: predictions of the next block's first token, the model's answer at the
first slot, the end of thinking, changes of distributions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from mdlm_lm_eval.decoding.lanes import Numbers
from mdlm_lm_eval.decoding.windows import Window


@dataclass(frozen=True, eq=False)
class Asked:
    """The N places of a window at which a pass asks the model.

    tokens: [P, C], those of the window before the pass.
    masks, filled: [P, C] bool, the masks that it may fill, and the filled tokens among its places.
    at: [N], the places' numbers in the flattened window.
    """

    window: Window
    tokens: Numbers
    masks: Numbers
    filled: Numbers
    at: Numbers

    @cached_property
    def place(self) -> Numbers:
        """[N], the row of the window that each is in."""
        found: Numbers = self.at // self.tokens.shape[1]
        return found

    @cached_property
    def offset(self) -> Numbers:
        """[N], each one's number in its row."""
        found: Numbers = self.at % self.tokens.shape[1]
        return found

    @cached_property
    def lane(self) -> Numbers:
        """[N], the lane that each is in."""
        found: Numbers = self.window.lanes[self.place, 0]
        return found

    @cached_property
    def slot(self) -> Numbers:
        """[N], each one's number among the slots of its row."""
        found: Numbers = self.window.slots.ravel()[self.at]
        return found

    def onto_window(self, values: Numbers) -> Numbers:
        """Values [N] at the places of the window [P, C], and zeros elsewhere."""
        found = np.zeros(self.tokens.size, values.dtype)
        found[self.at] = values
        return found.reshape(self.tokens.shape)


class Reader:
    """Sees the logits of each pass; all that it does not need does nothing."""

    def read(self, logits: Tensor, asked: Asked) -> dict[str, Tensor]:
        """Reads, or changes, the logits [N, V]. What it returns is sent to the host with the proposals, by name."""
        return {}

    def fields(self, found: Mapping[str, Numbers], asked: Asked) -> dict[str, Any]:
        """Fields of the sampler's `View`, from the numbers that were sent."""
        return {}

    def after(self, found: Mapping[str, Numbers], asked: Asked, written: Tensor) -> None:
        """Learns the places [P, C] bool at which the pass wrote tokens."""

    def enter(self, lanes: Tensor) -> None:
        """Forgets the rows that were in `lanes` [K], on the host."""

    def keep(self, lanes: Tensor) -> None:
        """Drops all other lanes."""
