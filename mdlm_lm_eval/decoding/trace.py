"""The changes of a canvas as a list of events, from which the canvas after every pass can be rebuilt."""

import itertools
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A change of one token by one pass.

    step: the number of the row's forward pass from 1; for a change between passes, of the one before it, or 0.
    position: the token's position on the canvas before the pass.
    old, new: token ids; `old` is None for an insertion in front of the position, `new` None for a deletion.
    confidence: the model's probability of the new token; 0 if the model did not propose it.
    """

    step: int
    position: int
    old: int | None
    new: int | None
    confidence: float


class Filled(NamedTuple):
    """The pass that wrote a returned token, the token's probability then, and how often it was changed.

    All are 0 for a token that no pass wrote, such as `end_think`.
    """

    step: int
    confidence: float
    edits: int


def changes(before: Iterable[int], after: Iterable[int], confidence: Iterable[float]) -> list[Event]:
    """The changes between two states of a part of a canvas, as events with step 0 and with positions in that part."""
    rows = enumerate(zip(before, after, confidence, strict=False))
    return [Event(0, n, old, new, sure) for n, (old, new, sure) in rows if old != new]


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Events pass by pass, and those of a pass from the right, so that each leaves the next ones' positions valid."""
    return sorted(events, key=lambda each: (each.step, -each.position, each.old is None))


def replay(token_ids: Sequence[int], events: Iterable[Event]) -> list[tuple[int, list[int]]]:
    """Returns (number of the pass, canvas after it) for every pass that changed the canvas.

    `token_ids` is the canvas before the first pass.
    """
    canvas, canvases = list(token_ids), []
    for step, of_step in groupby(_in_order(events), key=lambda each: each.step):
        for event in of_step:
            if event.old is None:
                canvas.insert(event.position, event.new or 0)
            elif event.new is None:
                del canvas[event.position]
            else:
                canvas[event.position] = event.new
        canvases.append((step, list(canvas)))
    return canvases


def filled(events: Iterable[Event], positions: Sequence[int], mask_token_id: int) -> list[Filled]:
    """For each of these positions, how the token there at the end came to be."""
    last: dict[int, Filled] = {}
    for event in _in_order(events):
        position, moves = event.position, (event.old is None) - (event.new is None)
        if moves:
            others = [(other, one) for other, one in last.items() if moves > 0 or other != position]
            last = {other + moves * (other >= position): one for other, one in others}
        if event.new not in (None, mask_token_id):
            edits = last[position].edits + 1 if position in last else 0
            is_proposed = event.confidence > 0.0
            last[position] = Filled(event.step, event.confidence, edits) if is_proposed else Filled(0, 0.0, 0)
    return [last.get(position, Filled(0, 0.0, 0)) for position in positions]


def as_recorded(token_ids: Sequence[int], first: int, events: Iterable[Event]) -> dict[str, Any]:
    """A canvas from position `first` on, and its events, as results keep them: strings with blanks between numbers.

    canvas: the tokens before the first pass, `id*n` for n equal ones.
    steps, places, tokens, confidence: one number for each event. A place is counted from `first`. A token `+id` is
    inserted in front of its place, `-` deletes the token there.
    """
    groups = [(str(id), len([*same])) for id, same in itertools.groupby(token_ids[first:])]
    rows = [
        (
            event.step,
            event.position - first,
            "-" if event.new is None else f"{'+' if event.old is None else ''}{event.new}",
            f"{event.confidence:.4g}",
        )
        for event in events
    ]
    columns = zip(("steps", "places", "tokens", "confidence"), zip(*rows, strict=True), strict=False)
    return {
        "canvas": " ".join(f"{id}*{n}" if n > 1 else id for id, n in groups),
        "events": {name: " ".join(map(str, column)) for name, column in columns},
    }
