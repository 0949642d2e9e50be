"""What passes changed on a canvas, as a list of events, from which the canvas after every pass can be rebuilt."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Event(NamedTuple):
    """A change of one token by one pass.

    step: the row's forward pass, counted from 1, or the last one before the change; 0 before the first.
    position: of the token on the canvas before the pass.
    old, new: token ids; `old` is None for an insertion in front of the position, `new` None for a deletion.
    confidence: the model's probability of the new token; 0 where it did not propose it.
    """

    step: int
    position: int
    old: int | None
    new: int | None
    confidence: float


class Filled(NamedTuple):
    """How a returned token came to be: the pass that wrote it, its probability then, and how often it was changed.

    All are 0 for a token that no pass wrote, as `end_think`.
    """

    step: int
    confidence: float
    edits: int


def replay(token_ids: Sequence[int], events: Iterable[Event]) -> list[tuple[int, list[int]]]:
    """The canvas after every pass that changed it, with the pass's number, from the canvas as it began.

    The changes of a pass are made from the right, so that positions hold.
    """
    canvas, canvases = list(token_ids), []
    by_step: dict[int, list[Event]] = {}
    for event in events:
        by_step.setdefault(event.step, []).append(event)
    for step, changes in by_step.items():
        for event in sorted(changes, key=lambda each: (-each.position, each.old is None)):
            if event.old is None:
                canvas.insert(event.position, event.new or 0)
            elif event.new is None:
                del canvas[event.position]
            else:
                canvas[event.position] = event.new
        canvases.append((step, list(canvas)))
    return canvases


def filled(events: Iterable[Event], positions: Sequence[int], mask_token_id: int) -> list[Filled]:
    """The last event that wrote each of these positions of a canvas on which nothing was inserted or deleted."""
    last: dict[int, Filled] = {}
    for event in events:
        if event.new != mask_token_id:
            edits = last[event.position].edits + 1 if event.position in last else 0
            is_proposed = event.confidence > 0.0
            last[event.position] = Filled(event.step, event.confidence, edits) if is_proposed else Filled(0, 0.0, 0)
    return [last.get(position, Filled(0, 0.0, 0)) for position in positions]
