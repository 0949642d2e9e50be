"""What decoding one canvas gave, and what it cost."""

from dataclasses import dataclass
from typing import NamedTuple


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


class Filled(NamedTuple):
    """How a returned token came to be: the row's forward pass that wrote it, counted from 1, the model's probability of
    it then, and how often the slot had held a token before. All are 0 for a token that no pass wrote, as `end_think`.
    """

    step: int
    confidence: float
    edits: int


@dataclass(frozen=True)
class Completion:
    """The tokens of a canvas's returned slots, up to an EOS or end of turn inclusive.

    `n_written` counts the returned slots that hold a token, those behind an EOS too. `trace` is of each token, empty
    without that option.
    """

    token_ids: list[int]
    cost: Cost
    n_written: int
    trace: tuple[Filled, ...] = ()
