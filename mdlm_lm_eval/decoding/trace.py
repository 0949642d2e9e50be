"""What passes changed on a canvas, as a list of events, from which the canvas after every pass can be rebuilt."""

import itertools
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple


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


def changes(before: Sequence[int], after: Sequence[int], confidence: Sequence[float]) -> list[Event]:
    """Those between two states of a part of a canvas, at places in it, of no step yet."""
    rows = enumerate(zip(before, after, confidence, strict=False))
    return [Event(0, n, old, new, sure) for n, (old, new, sure) in rows if old != new]


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Pass by pass, and those of a pass from the right, so that positions hold where they are made one by one."""
    return sorted(events, key=lambda each: (each.step, -each.position, each.old is None))


def replay(token_ids: Sequence[int], events: Iterable[Event]) -> list[tuple[int, list[int]]]:
    """The canvas after every pass that changed it, with the pass's number, from the canvas as it began."""
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
    """The last event that wrote what stands at each of these positions in the end."""
    last: dict[int, Filled] = {}
    for event in _in_order(events):
        at, moves = event.position, (event.old is None) - (event.new is None)
        if moves:
            last = {place + moves * (place >= at): one for place, one in last.items() if moves > 0 or place != at}
        if event.new not in (None, mask_token_id):
            edits = last[at].edits + 1 if at in last else 0
            is_proposed = event.confidence > 0.0
            last[at] = Filled(event.step, event.confidence, edits) if is_proposed else Filled(0, 0.0, 0)
    return [last.get(position, Filled(0, 0.0, 0)) for position in positions]


def as_recorded(token_ids: Sequence[int], first: int, events: Iterable[Event]) -> dict[str, Any]:
    """What a result keeps of a canvas from position `first` on, and of its events: strings with blanks between numbers.

    canvas: its tokens as it began, `id*n` for n equal ones. steps, places, tokens, confidence: of each event; a place
    is counted from `first`, a token `+id` is inserted in front of its place, `-` deletes what is there.
    """
    runs = [(str(id), len([*same])) for id, same in itertools.groupby(token_ids[first:])]
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
        "canvas": " ".join(f"{id}*{n}" if n > 1 else id for id, n in runs),
        "events": {name: " ".join(map(str, column)) for name, column in columns},
    }
