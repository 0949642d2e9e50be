"""What decoding one canvas gave, and what it cost."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Cost:
    """What one row of a batch took, whatever its neighbours did.

    forward_passes: passes of the model that this row took part in; those that only fill its cache too.
    steps: denoising steps, the passes in which masks could be filled or tokens changed.
    tokens: positions that went through the layers for this row, twice those under guidance.
    """

    forward_passes: int = 0
    steps: int = 0
    tokens: int = 0

    def plus(self, tokens: int, *, step: bool = True) -> "Cost":
        """With one pass more, over so many positions."""
        return Cost(self.forward_passes + 1, self.steps + step, self.tokens + tokens)


@dataclass(frozen=True)
class Completion:
    """The tokens of a canvas's returned slots, up to an EOS or end of turn inclusive.

    `n_written` counts the returned slots that hold a token, those behind an EOS too.
    """

    token_ids: list[int]
    cost: Cost
    n_written: int


@dataclass(frozen=True)
class ReturnedSlots:
    """The tokens of a canvas's returned slots so far, masks where they still are."""

    token_ids: list[int]
    mask_token_id: int

    @cached_property
    def written(self) -> list[int]:
        """Those that hold a token, from the left without a gap."""
        ids, mask = self.token_ids, self.mask_token_id
        return ids[: ids.index(mask)] if mask in ids else ids

    def is_decided(self, end_ids: Collection[int], is_decided: Callable[[list[int]], bool] | None) -> bool:
        """Whether nothing that is still to be decoded can change the returned text."""
        return (
            len(self.written) == len(self.token_ids)
            or any(token in end_ids for token in self.written)
            or (bool(self.written) and is_decided is not None and is_decided(self.written))
        )

    def completion(self, end_ids: Collection[int], cost: Cost) -> Completion:
        """What comes back."""
        stop = next((n for n, token in enumerate(self.written, start=1) if token in end_ids), len(self.written))
        n_written = len(self.token_ids) - self.token_ids.count(self.mask_token_id)
        return Completion(self.written[:stop], cost, n_written)
